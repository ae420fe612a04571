/* A test double of the CUDA driver and of NCCL, for machines without GPUs.
 *
 * Device memory is memory of the process, with a bit set in its address so that it cannot be
 * dereferenced. A stream is a thread. Ranks are processes that share a file in
 * FLEET_NCCL_DOUBLE_FOLDER. The double reproduces behaviour of the real libraries that callers
 * often get wrong: work runs asynchronously, a call in progress forbids the next one, a stream runs
 * its work in order, and a call waits for a dead peer until the communicator is aborted. A call
 * that the headers forbid ends the process with a message on stderr.
 *
 * FLEET_NCCL_DOUBLE_FAULT is "name" or "name:number":
 *   no-device     the driver finds no device
 *   devices:N     the driver finds N devices (default 8)
 *   version:N     the version code of the library is N (default 21805)
 *   stuck:N       call N on each communicator does nothing until it is aborted
 *   remote:N      the same, and NCCL reports that a remote process has failed
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS_MAX 8
#define AREA_BYTES ((size_t)8 << 20)
#define PAIR_BYTES ((size_t)2 << 20)
#define DEVICE_BIT ((uint64_t)1 << 62)
#define ID_TEXT "fleet-nccl-double:"

static void die(const char *text, ...) {
    va_list list;
    va_start(list, text);
    fprintf(stderr, "nccl double: ");
    vfprintf(stderr, text, list);
    fprintf(stderr, "\n");
    va_end(list);
    abort();
}

static void check(int is_valid, const char *call, const char *what) {
    if (!is_valid) die("%s: %s", call, what);
}

/* Number of calls that are stuck because of a fault. */
static atomic_int stuck_calls;

int fleet_double_stuck(void) {
    return stuck_calls;
}

/* The number of a configured fault (0 if it has no number), or -1 if it is not configured. */
static int fault(const char *name) {
    const char *text = getenv("FLEET_NCCL_DOUBLE_FAULT");
    size_t length = strlen(name);
    if (!text || strncmp(text, name, length)) return -1;
    if (text[length] == ':') return atoi(text + length + 1);
    return text[length] ? -1 : 0;
}

static void random_sleep(void) {
    static _Thread_local unsigned seed;
    if (!seed) seed = (unsigned)getpid() ^ (unsigned)(uintptr_t)&seed;
    if (rand_r(&seed) % 8 == 0) usleep(rand_r(&seed) % 300);
}

/* Live objects by kind; fleet_double_live counts them. */
enum { DEVICE_MEMORY = 1, HOST_MEMORY, STREAM, COMMUNICATOR };

struct Object {
    int kind;
    uint64_t at;
    size_t bytes;
    struct Object *next;
};

static pthread_mutex_t objects_lock = PTHREAD_MUTEX_INITIALIZER;
static struct Object *objects;
static _Thread_local int entered;

static void add_object(int kind, uint64_t at, size_t bytes) {
    struct Object *object = malloc(sizeof *object);
    pthread_mutex_lock(&objects_lock);
    *object = (struct Object){kind, at, bytes, objects};
    objects = object;
    pthread_mutex_unlock(&objects_lock);
}

static int is_live(int kind, uint64_t at, size_t bytes) {
    pthread_mutex_lock(&objects_lock);
    struct Object *object = objects;
    while (object && !(object->kind == kind && at >= object->at &&
                       at + bytes <= object->at + object->bytes))
        object = object->next;
    pthread_mutex_unlock(&objects_lock);
    return object != NULL;
}

static void remove_object(int kind, uint64_t at, const char *call) {
    pthread_mutex_lock(&objects_lock);
    struct Object **place = &objects;
    while (*place && !((*place)->kind == kind && (*place)->at == at)) place = &(*place)->next;
    struct Object *object = *place;
    check(object != NULL, call, "no such object (freed twice?)");
    *place = object->next;
    pthread_mutex_unlock(&objects_lock);
    free(object);
}

int fleet_double_live(void) {
    int count = 0;
    pthread_mutex_lock(&objects_lock);
    for (struct Object *object = objects; object; object = object->next) count++;
    pthread_mutex_unlock(&objects_lock);
    return count;
}

static char *device(uint64_t at, size_t bytes, const char *call) {
    check(is_live(DEVICE_MEMORY, at, bytes), call, "not inside live device memory");
    return (char *)(uintptr_t)(at & ~DEVICE_BIT);
}

/* Streams. */

struct Task {
    void (*run)(void *);
    void *work;
    struct Task *next;
};

struct Stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct Task *first, *last;
    int busy, stopped;
};

static void *stream_main(void *argument) {
    struct Stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->stopped)
            pthread_cond_wait(&stream->changed, &stream->lock);
        struct Task *task = stream->first;
        if (!task) break;
        stream->busy = 1;
        pthread_mutex_unlock(&stream->lock);
        random_sleep();
        task->run(task->work);
        pthread_mutex_lock(&stream->lock);
        stream->first = task->next;
        stream->busy = 0;
        free(task);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static void enqueue(struct Stream *stream, void (*run)(void *), void *work) {
    struct Task *task = malloc(sizeof *task);
    *task = (struct Task){run, work, NULL};
    pthread_mutex_lock(&stream->lock);
    if (stream->first) stream->last->next = task;
    else stream->first = task;
    stream->last = task;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static struct Stream *find_stream(void *handle, const char *call) {
    check(is_live(STREAM, (uintptr_t)handle, 1), call, "no such stream");
    return handle;
}

/* The driver. */

int cuInit(unsigned flags) {
    check(flags == 0, "cuInit", "invalid flags");
    return fault("no-device") >= 0 ? 100 : 0;
}

int cuGetErrorName(int code, const char **text) {
    *text = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_THE_DOUBLE";
    return 0;
}

int cuGetErrorString(int code, const char **text) {
    *text = code == 100 ? "no CUDA-capable device is detected" : "error of the double";
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = fault("devices") >= 0 ? fault("devices") : 8;
    return 0;
}

int cuDeviceGet(int *result, int index) {
    int count;
    cuDeviceGetCount(&count);
    check(index >= 0 && index < count, "cuDeviceGet", "no such device");
    *result = index;
    return 0;
}

int cuDeviceGetName(char *to, int bytes, int index) {
    snprintf(to, bytes, "double %d", index);
    return 0;
}

int cuDeviceGetPCIBusId(char *to, int bytes, int index) {
    snprintf(to, bytes, "0000:%02x:00.0", index + 16);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **result, int index) {
    *result = (void *)(uintptr_t)(index + 1);
    return 0;
}

int cuCtxSetCurrent(void *context) {
    check(context != NULL, "cuCtxSetCurrent", "no context");
    entered = 1;
    return 0;
}

int cuMemAlloc_v2(uint64_t *result, size_t bytes) {
    check(entered && bytes > 0, "cuMemAlloc", "no context, or no bytes");
    char *memory = malloc(bytes);
    memset(memory, 0xa5, bytes);
    *result = (uint64_t)(uintptr_t)memory | DEVICE_BIT;
    add_object(DEVICE_MEMORY, *result, bytes);
    return 0;
}

int cuMemFree_v2(uint64_t at) {
    check(entered, "cuMemFree", "no context");
    remove_object(DEVICE_MEMORY, at, "cuMemFree");
    free((void *)(uintptr_t)(at & ~DEVICE_BIT));
    return 0;
}

int cuMemAllocHost_v2(void **result, size_t bytes) {
    check(entered && bytes > 0, "cuMemAllocHost", "no context, or no bytes");
    check(posix_memalign(result, 4096, bytes) == 0, "cuMemAllocHost", "no memory");
    add_object(HOST_MEMORY, (uintptr_t)*result, bytes);
    return 0;
}

int cuMemFreeHost(void *at) {
    check(entered, "cuMemFreeHost", "no context");
    remove_object(HOST_MEMORY, (uintptr_t)at, "cuMemFreeHost");
    free(at);
    return 0;
}

struct Copy {
    uint64_t device_at;
    void *host;
    size_t bytes;
    int up;
};

static void run_copy(void *work) {
    struct Copy *copy = work;
    const char *call = copy->up ? "copy to the device" : "copy to the host";
    char *device_memory = device(copy->device_at, copy->bytes, call);
    check(is_live(HOST_MEMORY, (uintptr_t)copy->host, copy->bytes), call, "host memory was freed");
    if (copy->up) memcpy(device_memory, copy->host, copy->bytes);
    else memcpy(copy->host, device_memory, copy->bytes);
    free(copy);
}

static int enqueue_copy(uint64_t at, void *host, size_t bytes, void *stream, int up) {
    const char *call = up ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync";
    check(entered && bytes > 0, call, "no context, or no bytes");
    device(at, bytes, call);
    check(is_live(HOST_MEMORY, (uintptr_t)host, bytes), call, "host memory is not pinned");
    struct Copy *copy = malloc(sizeof *copy);
    *copy = (struct Copy){at, host, bytes, up};
    enqueue(find_stream(stream, call), run_copy, copy);
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    return enqueue_copy(to, (void *)from, bytes, stream, 1);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    return enqueue_copy(from, to, bytes, stream, 0);
}

int cuStreamCreate(void **result, unsigned flags) {
    check(entered && flags == 1, "cuStreamCreate", "no context, or a synchronizing stream");
    struct Stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    pthread_create(&stream->thread, NULL, stream_main, stream);
    add_object(STREAM, (uintptr_t)stream, 1);
    *result = stream;
    return 0;
}

int cuStreamQuery(void *handle) {
    struct Stream *stream = find_stream(handle, "cuStreamQuery");
    pthread_mutex_lock(&stream->lock);
    int idle = !stream->first && !stream->busy;
    pthread_mutex_unlock(&stream->lock);
    return idle ? 0 : 600;
}

int cuStreamDestroy_v2(void *handle) {
    check(entered, "cuStreamDestroy", "no context");
    check(cuStreamQuery(handle) == 0, "cuStreamDestroy", "the stream is not idle");
    struct Stream *stream = handle;
    remove_object(STREAM, (uintptr_t)handle, "cuStreamDestroy");
    pthread_mutex_lock(&stream->lock);
    stream->stopped = 1;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    free(stream);
    return 0;
}

/* NCCL. */

enum { SUCCESS = 0, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { ALL_REDUCE = 1, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, GROUP };

typedef struct {
    char internal[128];
} UniqueId;

struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

/* Properties of a call that must be equal on all ranks. */
struct Call {
    int what, dtype, op, root;
    size_t count;
};

struct Shared {
    _Atomic int joined, ranks_taken[RANKS_MAX];
    _Atomic uint64_t arrived[RANKS_MAX], left[RANKS_MAX];
    struct Call calls[RANKS_MAX];
    struct {
        _Atomic uint64_t sent, taken;
        size_t bytes;
    } pairs[RANKS_MAX][RANKS_MAX];
};

struct Communicator {
    int rank, size;
    char path[128];
    struct Shared *shared;
    _Atomic int state, stopped, in_flight;
    _Atomic uint64_t next_ticket;
    uint64_t calls, collectives;
};

struct Message {
    int sends, peer, begun, done;
    size_t bytes;
    uint64_t at;
};

struct Kernel {
    struct Communicator *comm;
    struct Stream *stream;
    struct Call call;
    uint64_t from, to, ticket;
    struct Message *messages;
    int message_count;
};

static size_t area_start(void) { return (sizeof(struct Shared) + 4095) / 4096 * 4096; }

static size_t shared_bytes(void) {
    return area_start() + RANKS_MAX * AREA_BYTES + RANKS_MAX * RANKS_MAX * PAIR_BYTES;
}

static char *area(struct Communicator *comm, int rank) {
    return (char *)comm->shared + area_start() + rank * AREA_BYTES;
}

static char *pair(struct Communicator *comm, int from, int to) {
    return area(comm, RANKS_MAX) + (from * RANKS_MAX + to) * PAIR_BYTES;
}

static size_t size_of(int dtype, const char *call) {
    switch (dtype) {
    case 1: return 1;
    case 6: case 9: return 2;
    case 2: case 7: return 4;
    case 4: case 8: return 8;
    }
    die("%s: invalid type %d", call, dtype);
    return 0;
}

/* Waits for a condition; false when the communicator is aborted. */
#define UNTIL(comm, condition) ({ \
    while (!(condition) && !(comm)->stopped) usleep(20); \
    !(comm)->stopped; })

#define FOLD(T) do { \
    T *into = to; const T *more = from; \
    for (size_t i = 0; i < count; i++) \
        into[i] = op == 0 ? (T)(into[i] + more[i]) : op == 1 ? (T)(into[i] * more[i]) \
                : op == 2 ? (into[i] > more[i] ? into[i] : more[i]) \
                          : (into[i] < more[i] ? into[i] : more[i]); } while (0)

static float half(uint16_t bits, int dtype) {
    uint32_t wide = (uint32_t)bits << 16;
    if (dtype == 6) {
        uint32_t exponent = bits >> 10 & 31, rest = bits & 1023;
        check(exponent != 0 || rest == 0, "half",
              "subnormal numbers are not supported by the double");
        wide = (uint32_t)(bits & 0x8000) << 16;
        if (exponent) wide |= (exponent + (exponent == 31 ? 224 : 112)) << 23 | rest << 13;
    }
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static void fold(void *to, const void *from, size_t count, int dtype, int op) {
    switch (dtype) {
    case 1: FOLD(uint8_t); return;
    case 2: FOLD(int32_t); return;
    case 4: FOLD(int64_t); return;
    case 7: FOLD(float); return;
    case 8: FOLD(double); return;
    }
    check(op == 2 || op == 3, "reduction", "sums of half floats are not supported by the double");
    uint16_t *into = to;
    const uint16_t *more = from;
    for (size_t i = 0; i < count; i++) {
        float a = half(into[i], dtype), b = half(more[i], dtype);
        if (op == 2 ? b > a : b < a) into[i] = more[i];
    }
}

/* Runs one collective. Kernels of a communicator run in the order of their calls. */
static void collective(struct Kernel *kernel) {
    struct Communicator *comm = kernel->comm;
    struct Shared *shared = comm->shared;
    struct Call *call = &kernel->call;
    const int rank = comm->rank, size = comm->size;
    const size_t unit = size_of(call->dtype, "kernel"), bytes = call->count * unit;
    const uint64_t number = ++comm->collectives;
    const int scatters = call->what == REDUCE_SCATTER;
    const size_t read_bytes = scatters ? bytes * size : bytes;
    check(read_bytes <= AREA_BYTES, "kernel", "data is larger than the buffers of the double");
    for (int peer = 0; peer < size; peer++)
        if (!UNTIL(comm, shared->left[peer] + 1 >= number)) return;
    if (call->what != BROADCAST || rank == call->root)
        memcpy(area(comm, rank), device(kernel->from, read_bytes, "read of a kernel"), read_bytes);
    shared->calls[rank] = *call;
    shared->arrived[rank] = number;
    for (int peer = 0; peer < size; peer++)
        if (!UNTIL(comm, shared->arrived[peer] >= number)) return;
    for (int peer = 0; peer < size; peer++)
        if (memcmp(&shared->calls[peer], call, sizeof *call))
            die("ranks %d and %d call different collectives", rank, peer);
    const int has_result = call->what != REDUCE || rank == call->root;
    const size_t result_bytes = call->what == ALL_GATHER ? bytes * size : bytes;
    char *to = has_result ? device(kernel->to, result_bytes, "write of a kernel") : NULL;
    for (int peer = 0; has_result && peer < size; peer++) {
        char *from = area(comm, peer) + (scatters ? rank * bytes : 0);
        if (call->what == ALL_GATHER) memcpy(to + peer * bytes, from, bytes);
        else if (call->what == BROADCAST) memcpy(to, area(comm, call->root), bytes);
        else if (peer == 0) memcpy(to, from, bytes);
        else fold(to, from, call->count, call->dtype, call->op);
    }
    shared->left[rank] = number;
}

/* Runs all messages of a group concurrently. A message is done when the receiver has read it. */
static void exchange(struct Kernel *kernel) {
    struct Communicator *comm = kernel->comm;
    for (int open = kernel->message_count; open && !comm->stopped;) {
        for (int i = 0; i < kernel->message_count; i++) {
            struct Message *message = &kernel->messages[i];
            if (message->done) continue;
            const int from = message->sends ? comm->rank : message->peer;
            const int to = message->sends ? message->peer : comm->rank;
            char *memory = device(message->at, message->bytes, "message");
            uint64_t sent = comm->shared->pairs[from][to].sent;
            uint64_t taken = comm->shared->pairs[from][to].taken;
            if (message->sends && !message->begun && sent == taken) {
                memcpy(pair(comm, from, to), memory, message->bytes);
                comm->shared->pairs[from][to].bytes = message->bytes;
                comm->shared->pairs[from][to].sent++;
                message->begun = 1;
            } else if (message->sends && message->begun && sent == taken) {
                message->done = 1, open--;
            } else if (!message->sends && sent > taken) {
                check(comm->shared->pairs[from][to].bytes == message->bytes, "ncclRecv",
                      "message size mismatch");
                memcpy(memory, pair(comm, from, to), message->bytes);
                comm->shared->pairs[from][to].taken++;
                message->done = 1, open--;
            }
        }
        if (open) usleep(20);
    }
}

static void run_kernel(void *work) {
    struct Kernel *kernel = work;
    struct Communicator *comm = kernel->comm;
    if (UNTIL(comm, comm->next_ticket == kernel->ticket)) {
        int stuck = fault("stuck"), remote = fault("remote");
        if (stuck == (int)kernel->ticket || remote == (int)kernel->ticket) {
            if (remote > 0) comm->state = REMOTE_ERROR;
            stuck_calls++;
            UNTIL(comm, 0);
        } else if (kernel->call.what == GROUP) {
            exchange(kernel);
        } else {
            collective(kernel);
        }
        comm->next_ticket++;
    }
    free(kernel->messages);
    free(kernel);
    comm->in_flight--;
}

static void *launch(void *argument) {
    struct Kernel *kernel = argument;
    struct Communicator *comm = kernel->comm;
    usleep(100);
    enqueue(kernel->stream, run_kernel, kernel);
    int expected = IN_PROGRESS;
    atomic_compare_exchange_strong(&comm->state, &expected, SUCCESS);
    comm->in_flight--;
    return NULL;
}

static struct Communicator *find_communicator(void *handle, const char *call) {
    check(is_live(COMMUNICATOR, (uintptr_t)handle, 1), call, "no such communicator");
    return handle;
}

static void start_thread(void *(*main)(void *), void *argument) {
    pthread_t thread;
    pthread_create(&thread, NULL, main, argument);
    pthread_detach(thread);
}

/* Enqueues every third kernel later, from another thread, and the others at once. */
static int submit(struct Kernel *kernel, void *stream, const char *call) {
    struct Communicator *comm = kernel->comm;
    check(entered, call, "no context");
    check(comm->state != IN_PROGRESS, call, "the previous call is in progress");
    if (comm->state != SUCCESS) return comm->state;
    kernel->stream = find_stream(stream, call);
    kernel->ticket = ++comm->calls;
    comm->in_flight++;
    if (kernel->ticket % 3) {
        enqueue(kernel->stream, run_kernel, kernel);
        return SUCCESS;
    }
    comm->in_flight++;
    comm->state = IN_PROGRESS;
    start_thread(launch, kernel);
    return IN_PROGRESS;
}

static int start(const char *name, struct Call call, uint64_t from, size_t read_count, uint64_t to,
                 size_t result_count, void *handle, void *stream) {
    struct Communicator *comm = find_communicator(handle, name);
    const size_t unit = size_of(call.dtype, name);
    check(call.op >= 0 && call.op <= 3, name, "operation not supported by the double");
    check(call.root >= 0 && call.root < comm->size && call.count > 0, name,
          "invalid root or count");
    if (read_count) device(from, read_count * unit, name);
    if (result_count) device(to, result_count * unit, name);
    struct Kernel *kernel = calloc(1, sizeof *kernel);
    *kernel = (struct Kernel){.comm = comm, .call = call, .from = from, .to = to};
    return submit(kernel, stream, name);
}

int ncclGetVersion(int *code) {
    *code = fault("version") >= 0 ? fault("version") : 21805;
    return SUCCESS;
}

const char *ncclGetErrorString(int code) {
    return code == REMOTE_ERROR ? "remote process exited or there was a network error"
                                : "an error";
}

const char *ncclGetLastError(void *comm) {
    (void)comm;
    return "as the double was configured";
}

int ncclGetUniqueId(UniqueId *id) {
    static _Atomic int count;
    const char *folder = getenv("FLEET_NCCL_DOUBLE_FOLDER");
    check(folder != NULL, "ncclGetUniqueId", "FLEET_NCCL_DOUBLE_FOLDER is not set");
    memset(id, 0, sizeof *id);
    int length = snprintf(id->internal, sizeof id->internal, ID_TEXT "%s/%d.%d", folder,
                          (int)getpid(), (int)count++);
    check(length < (int)sizeof id->internal, "ncclGetUniqueId",
          "the path of the folder is too long");
    return SUCCESS;
}

static void *join_ranks(void *argument) {
    struct Communicator *comm = argument;
    int file = open(comm->path, O_RDWR | O_CREAT, 0600);
    check(file >= 0 && ftruncate(file, shared_bytes()) == 0, "ncclCommInitRankConfig",
          "cannot create the file");
    comm->shared = mmap(NULL, shared_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(comm->shared != MAP_FAILED, "ncclCommInitRankConfig", "cannot map the file");
    close(file);
    check(!comm->shared->ranks_taken[comm->rank]++, "ncclCommInitRankConfig",
          "two processes have the same rank");
    comm->shared->joined++;
    if (UNTIL(comm, comm->shared->joined == comm->size)) {
        unlink(comm->path);
        comm->state = SUCCESS;
    }
    comm->in_flight--;
    return NULL;
}

int ncclCommInitRankConfig(void **result, int size, UniqueId id, int rank,
                           const struct Config *config) {
    const char *call = "ncclCommInitRankConfig";
    check(entered, call, "no context");
    check(config->magic == 0xcafebeef && config->size >= 24 && config->version >= 21400, call,
          "invalid configuration");
    check(config->blocking == 0, call, "blocking communicators are not supported by the double");
    check(!strncmp(id.internal, ID_TEXT, strlen(ID_TEXT)), call, "invalid id");
    check(size >= 2 && size <= RANKS_MAX && rank >= 0 && rank < size, call, "invalid rank or size");
    struct Communicator *comm = calloc(1, sizeof *comm);
    comm->rank = rank;
    comm->size = size;
    comm->next_ticket = 1;
    comm->in_flight = 1;
    comm->state = IN_PROGRESS;
    strcpy(comm->path, id.internal + strlen(ID_TEXT));
    add_object(COMMUNICATOR, (uintptr_t)comm, 1);
    *result = comm;
    start_thread(join_ranks, comm);
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(void *handle, int *state) {
    *state = find_communicator(handle, "ncclCommGetAsyncError")->state;
    return SUCCESS;
}

int ncclCommAbort(void *handle) {
    struct Communicator *comm = find_communicator(handle, "ncclCommAbort");
    remove_object(COMMUNICATOR, (uintptr_t)handle, "ncclCommAbort");
    comm->stopped = 1;
    while (comm->in_flight) usleep(20);
    if (comm->shared) munmap(comm->shared, shared_bytes());
    free(comm);
    return SUCCESS;
}

int ncclAllReduce(uint64_t from, uint64_t to, size_t count, int dtype, int op, void *comm,
                  void *stream) {
    struct Call call = {ALL_REDUCE, dtype, op, 0, count};
    return start("ncclAllReduce", call, from, count, to, count, comm, stream);
}

int ncclReduce(uint64_t from, uint64_t to, size_t count, int dtype, int op, int root, void *comm,
               void *stream) {
    struct Call call = {REDUCE, dtype, op, root, count};
    return start("ncclReduce", call, from, count, to, count, comm, stream);
}

int ncclBroadcast(uint64_t from, uint64_t to, size_t count, int dtype, int root, void *comm,
                  void *stream) {
    struct Call call = {BROADCAST, dtype, 0, root, count};
    return start("ncclBroadcast", call, from, count, to, count, comm, stream);
}

int ncclReduceScatter(uint64_t from, uint64_t to, size_t count, int dtype, int op, void *comm,
                      void *stream) {
    struct Call call = {REDUCE_SCATTER, dtype, op, 0, count};
    int size = find_communicator(comm, "ncclReduceScatter")->size;
    return start("ncclReduceScatter", call, from, count * size, to, count, comm, stream);
}

int ncclAllGather(uint64_t from, uint64_t to, size_t count, int dtype, void *comm, void *stream) {
    struct Call call = {ALL_GATHER, dtype, 0, 0, count};
    int size = find_communicator(comm, "ncclAllGather")->size;
    return start("ncclAllGather", call, from, count, to, count * size, comm, stream);
}

static _Thread_local int depth, group_count;
static _Thread_local struct Message group[4 * RANKS_MAX];
static _Thread_local void *group_comm, *group_stream;

int ncclGroupStart(void) {
    check(depth++ == 0, "ncclGroupStart", "nested group");
    group_count = 0;
    return SUCCESS;
}

static int message(int sends, uint64_t at, size_t count, int dtype, int peer, void *comm,
                   void *stream) {
    const char *call = sends ? "ncclSend" : "ncclRecv";
    const size_t bytes = count * size_of(dtype, call);
    check(depth == 1 && group_count < 4 * RANKS_MAX, call,
          "not in a group, or too many messages in it");
    check(!group_count || (comm == group_comm && stream == group_stream), call,
          "messages of different communicators or streams in one group");
    check(peer >= 0 && peer < find_communicator(comm, call)->size && bytes <= PAIR_BYTES, call,
          "invalid peer or length");
    device(at, bytes, call);
    group_comm = comm, group_stream = stream;
    group[group_count++] = (struct Message){.sends = sends, .peer = peer, .bytes = bytes, .at = at};
    return SUCCESS;
}

int ncclSend(uint64_t at, size_t count, int dtype, int peer, void *comm, void *stream) {
    return message(1, at, count, dtype, peer, comm, stream);
}

int ncclRecv(uint64_t at, size_t count, int dtype, int peer, void *comm, void *stream) {
    return message(0, at, count, dtype, peer, comm, stream);
}

int ncclGroupEnd(void) {
    check(depth-- == 1, "ncclGroupEnd", "no group was started");
    if (!group_count) return SUCCESS;
    struct Kernel *kernel = calloc(1, sizeof *kernel);
    kernel->comm = group_comm;
    kernel->call.what = GROUP;
    kernel->message_count = group_count;
    kernel->messages = malloc(group_count * sizeof *group);
    memcpy(kernel->messages, group, group_count * sizeof *group);
    return submit(kernel, group_stream, "ncclGroupEnd");
}
