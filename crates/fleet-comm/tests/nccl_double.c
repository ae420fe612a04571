/* A double of the driver of CUDA and of NCCL, for machines that have neither.
 *
 * Memory of the device is memory of the process behind addresses that nobody can follow; a stream is a
 * thread; ranks are processes that share a file of FLEET_NCCL_DOUBLE_FOLDER. It does what the real ones do
 * where that is easy to get wrong: everything happens later, a call in progress forbids the next one, work
 * is in the order of its stream, and a peer that is gone is waited for until the communicator is aborted.
 * Whatever the headers forbid ends the process with a word on stderr.
 *
 * FLEET_NCCL_DOUBLE_FAULT is "name" or "name:number":
 *   no-device     the driver finds none
 *   devices:N     it finds N (else 8)
 *   version:N     the library is of version code N (else 21805)
 *   stuck:N       the Nth call on each communicator does nothing until it is aborted
 *   remote:N      the same, and NCCL says that a remote process has failed
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

static void check(int holds, const char *call, const char *what) {
    if (!holds) die("%s: %s", call, what);
}

/* The number of a fault (0 where it has none), or -1. */
/* Calls that are stuck by order; fleet_double_stuck counts them. */
static atomic_int stuck_calls;

int fleet_double_stuck(void) {
    return stuck_calls;
}

static int fault(const char *name) {
    const char *text = getenv("FLEET_NCCL_DOUBLE_FAULT");
    size_t length = strlen(name);
    if (!text || strncmp(text, name, length)) return -1;
    if (text[length] == ':') return atoi(text + length + 1);
    return text[length] ? -1 : 0;
}

static void nap(void) {
    static _Thread_local unsigned seed;
    if (!seed) seed = (unsigned)getpid() ^ (unsigned)(uintptr_t)&seed;
    if (rand_r(&seed) % 8 == 0) usleep(rand_r(&seed) % 300);
}

/* What is there, by kind; fleet_double_live counts it. */
enum { DEVICE_MEMORY = 1, HOST_MEMORY, STREAM, COMMUNICATOR };

struct Thing {
    int kind;
    uint64_t at;
    size_t bytes;
    struct Thing *next;
};

static pthread_mutex_t things_lock = PTHREAD_MUTEX_INITIALIZER;
static struct Thing *things;
static _Thread_local int entered;

static void add(int kind, uint64_t at, size_t bytes) {
    struct Thing *thing = malloc(sizeof *thing);
    pthread_mutex_lock(&things_lock);
    *thing = (struct Thing){kind, at, bytes, things};
    things = thing;
    pthread_mutex_unlock(&things_lock);
}

static int is_there(int kind, uint64_t at, size_t bytes) {
    pthread_mutex_lock(&things_lock);
    struct Thing *thing = things;
    while (thing && !(thing->kind == kind && at >= thing->at && at + bytes <= thing->at + thing->bytes))
        thing = thing->next;
    pthread_mutex_unlock(&things_lock);
    return thing != NULL;
}

static void take_away(int kind, uint64_t at, const char *call) {
    pthread_mutex_lock(&things_lock);
    struct Thing **place = &things;
    while (*place && !((*place)->kind == kind && (*place)->at == at)) place = &(*place)->next;
    struct Thing *thing = *place;
    check(thing != NULL, call, "nothing of the kind is there (given back twice?)");
    *place = thing->next;
    pthread_mutex_unlock(&things_lock);
    free(thing);
}

int fleet_double_live(void) {
    int count = 0;
    pthread_mutex_lock(&things_lock);
    for (struct Thing *thing = things; thing; thing = thing->next) count++;
    pthread_mutex_unlock(&things_lock);
    return count;
}

static char *device(uint64_t at, size_t bytes, const char *call) {
    check(is_there(DEVICE_MEMORY, at, bytes), call, "not inside memory of the device that is there");
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
    int busy, over;
};

static void *stream_main(void *argument) {
    struct Stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->over) pthread_cond_wait(&stream->changed, &stream->lock);
        struct Task *task = stream->first;
        if (!task) break;
        stream->busy = 1;
        pthread_mutex_unlock(&stream->lock);
        nap();
        task->run(task->work);
        pthread_mutex_lock(&stream->lock);
        stream->first = task->next;
        stream->busy = 0;
        free(task);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static void put(struct Stream *stream, void (*run)(void *), void *work) {
    struct Task *task = malloc(sizeof *task);
    *task = (struct Task){run, work, NULL};
    pthread_mutex_lock(&stream->lock);
    if (stream->first) stream->last->next = task;
    else stream->first = task;
    stream->last = task;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static struct Stream *a_stream(void *handle, const char *call) {
    check(is_there(STREAM, (uintptr_t)handle, 1), call, "no such stream");
    return handle;
}

/* The driver. */

int cuInit(unsigned flags) {
    check(flags == 0, "cuInit", "flags");
    return fault("no-device") >= 0 ? 100 : 0;
}

int cuGetErrorName(int code, const char **text) {
    *text = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_THE_DOUBLE";
    return 0;
}

int cuGetErrorString(int code, const char **text) {
    *text = code == 100 ? "no CUDA-capable device is detected" : "an error of the double";
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = fault("devices") >= 0 ? fault("devices") : 8;
    return 0;
}

int cuDeviceGet(int *made, int index) {
    int count;
    cuDeviceGetCount(&count);
    check(index >= 0 && index < count, "cuDeviceGet", "no such device");
    *made = index;
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

int cuDevicePrimaryCtxRetain(void **made, int index) {
    *made = (void *)(uintptr_t)(index + 1);
    return 0;
}

int cuCtxSetCurrent(void *context) {
    check(context != NULL, "cuCtxSetCurrent", "no context");
    entered = 1;
    return 0;
}

int cuMemAlloc_v2(uint64_t *made, size_t bytes) {
    check(entered && bytes > 0, "cuMemAlloc", "no context, or no bytes");
    char *memory = malloc(bytes);
    memset(memory, 0xa5, bytes);
    *made = (uint64_t)(uintptr_t)memory | DEVICE_BIT;
    add(DEVICE_MEMORY, *made, bytes);
    return 0;
}

int cuMemFree_v2(uint64_t at) {
    check(entered, "cuMemFree", "no context");
    take_away(DEVICE_MEMORY, at, "cuMemFree");
    free((void *)(uintptr_t)(at & ~DEVICE_BIT));
    return 0;
}

int cuMemAllocHost_v2(void **made, size_t bytes) {
    check(entered && bytes > 0, "cuMemAllocHost", "no context, or no bytes");
    check(posix_memalign(made, 4096, bytes) == 0, "cuMemAllocHost", "no memory");
    add(HOST_MEMORY, (uintptr_t)*made, bytes);
    return 0;
}

int cuMemFreeHost(void *at) {
    check(entered, "cuMemFreeHost", "no context");
    take_away(HOST_MEMORY, (uintptr_t)at, "cuMemFreeHost");
    free(at);
    return 0;
}

struct Copy {
    uint64_t device_at;
    void *host;
    size_t bytes;
    int up;
};

static void copy_now(void *work) {
    struct Copy *copy = work;
    const char *call = copy->up ? "a copy to the device" : "a copy to the host";
    char *there = device(copy->device_at, copy->bytes, call);
    check(is_there(HOST_MEMORY, (uintptr_t)copy->host, copy->bytes), call, "memory of the host is gone");
    if (copy->up) memcpy(there, copy->host, copy->bytes);
    else memcpy(copy->host, there, copy->bytes);
    free(copy);
}

static int copy_later(uint64_t at, void *host, size_t bytes, void *stream, int up) {
    const char *call = up ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync";
    check(entered && bytes > 0, call, "no context, or no bytes");
    device(at, bytes, call);
    check(is_there(HOST_MEMORY, (uintptr_t)host, bytes), call, "memory of the host is not pinned");
    struct Copy *copy = malloc(sizeof *copy);
    *copy = (struct Copy){at, host, bytes, up};
    put(a_stream(stream, call), copy_now, copy);
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    return copy_later(to, (void *)from, bytes, stream, 1);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    return copy_later(from, to, bytes, stream, 0);
}

int cuStreamCreate(void **made, unsigned flags) {
    check(entered && flags == 1, "cuStreamCreate", "no context, or not a stream of its own");
    struct Stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    pthread_create(&stream->thread, NULL, stream_main, stream);
    add(STREAM, (uintptr_t)stream, 1);
    *made = stream;
    return 0;
}

int cuStreamQuery(void *handle) {
    struct Stream *stream = a_stream(handle, "cuStreamQuery");
    pthread_mutex_lock(&stream->lock);
    int idle = !stream->first && !stream->busy;
    pthread_mutex_unlock(&stream->lock);
    return idle ? 0 : 600;
}

int cuStreamDestroy_v2(void *handle) {
    check(entered, "cuStreamDestroy", "no context");
    check(cuStreamQuery(handle) == 0, "cuStreamDestroy", "something is under way");
    struct Stream *stream = handle;
    take_away(STREAM, (uintptr_t)handle, "cuStreamDestroy");
    pthread_mutex_lock(&stream->lock);
    stream->over = 1;
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

/* What all ranks must say alike. */
struct Call {
    int what, dtype, op, root;
    size_t count;
};

struct Shared {
    _Atomic int joined, sat[RANKS_MAX];
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
    _Atomic int state, over, under_way;
    _Atomic uint64_t turn;
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
    die("%s: type %d", call, dtype);
    return 0;
}

/* Waits for a condition; false when the communicator is aborted. */
#define UNTIL(comm, condition) ({ \
    while (!(condition) && !(comm)->over) usleep(20); \
    !(comm)->over; })

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
        check(exponent != 0 || rest == 0, "half", "a number that the double does not know");
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
    check(op == 2 || op == 3, "a reduction", "the double adds no half floats");
    uint16_t *into = to;
    const uint16_t *more = from;
    for (size_t i = 0; i < count; i++) {
        float a = half(into[i], dtype), b = half(more[i], dtype);
        if (op == 2 ? b > a : b < a) into[i] = more[i];
    }
}

/* One collective, when its turn has come. */
static void collective(struct Kernel *kernel) {
    struct Communicator *comm = kernel->comm;
    struct Shared *shared = comm->shared;
    struct Call *call = &kernel->call;
    const int rank = comm->rank, size = comm->size;
    const size_t unit = size_of(call->dtype, "a kernel"), bytes = call->count * unit;
    const uint64_t number = ++comm->collectives;
    const int scatters = call->what == REDUCE_SCATTER;
    const size_t brought = scatters ? bytes * size : bytes;
    check(brought <= AREA_BYTES, "a kernel", "more than the double has room for");
    for (int peer = 0; peer < size; peer++)
        if (!UNTIL(comm, shared->left[peer] + 1 >= number)) return;
    if (call->what != BROADCAST || rank == call->root)
        memcpy(area(comm, rank), device(kernel->from, brought, "a kernel reads"), brought);
    shared->calls[rank] = *call;
    shared->arrived[rank] = number;
    for (int peer = 0; peer < size; peer++)
        if (!UNTIL(comm, shared->arrived[peer] >= number)) return;
    for (int peer = 0; peer < size; peer++)
        if (memcmp(&shared->calls[peer], call, sizeof *call))
            die("ranks %d and %d are in different calls", rank, peer);
    const int takes = call->what != REDUCE || rank == call->root;
    const size_t made = call->what == ALL_GATHER ? bytes * size : bytes;
    char *to = takes ? device(kernel->to, made, "a kernel writes") : NULL;
    for (int peer = 0; takes && peer < size; peer++) {
        char *from = area(comm, peer) + (scatters ? rank * bytes : 0);
        if (call->what == ALL_GATHER) memcpy(to + peer * bytes, from, bytes);
        else if (call->what == BROADCAST) memcpy(to, area(comm, call->root), bytes);
        else if (peer == 0) memcpy(to, from, bytes);
        else fold(to, from, call->count, call->dtype, call->op);
    }
    shared->left[rank] = number;
}

/* All messages of a group at once; one is done when it was taken. */
static void exchange(struct Kernel *kernel) {
    struct Communicator *comm = kernel->comm;
    for (int open = kernel->message_count; open && !comm->over;) {
        for (int i = 0; i < kernel->message_count; i++) {
            struct Message *message = &kernel->messages[i];
            if (message->done) continue;
            const int from = message->sends ? comm->rank : message->peer;
            const int to = message->sends ? message->peer : comm->rank;
            char *memory = device(message->at, message->bytes, "a message");
            uint64_t sent = comm->shared->pairs[from][to].sent, taken = comm->shared->pairs[from][to].taken;
            if (message->sends && !message->begun && sent == taken) {
                memcpy(pair(comm, from, to), memory, message->bytes);
                comm->shared->pairs[from][to].bytes = message->bytes;
                comm->shared->pairs[from][to].sent++;
                message->begun = 1;
            } else if (message->sends && message->begun && sent == taken) {
                message->done = 1, open--;
            } else if (!message->sends && sent > taken) {
                check(comm->shared->pairs[from][to].bytes == message->bytes, "ncclRecv", "another length");
                memcpy(memory, pair(comm, from, to), message->bytes);
                comm->shared->pairs[from][to].taken++;
                message->done = 1, open--;
            }
        }
        if (open) usleep(20);
    }
}

static void kernel_now(void *work) {
    struct Kernel *kernel = work;
    struct Communicator *comm = kernel->comm;
    if (UNTIL(comm, comm->turn == kernel->ticket)) {
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
        comm->turn++;
    }
    free(kernel->messages);
    free(kernel);
    comm->under_way--;
}

static void *launch(void *argument) {
    struct Kernel *kernel = argument;
    struct Communicator *comm = kernel->comm;
    usleep(100);
    put(kernel->stream, kernel_now, kernel);
    int expected = IN_PROGRESS;
    atomic_compare_exchange_strong(&comm->state, &expected, SUCCESS);
    comm->under_way--;
    return NULL;
}

static struct Communicator *a_communicator(void *handle, const char *call) {
    check(is_there(COMMUNICATOR, (uintptr_t)handle, 1), call, "no such communicator");
    return handle;
}

static void later(void *(*main)(void *), void *argument) {
    pthread_t thread;
    pthread_create(&thread, NULL, main, argument);
    pthread_detach(thread);
}

/* Now and then at once, now and then later, as it comes. */
static int submit(struct Kernel *kernel, void *stream, const char *call) {
    struct Communicator *comm = kernel->comm;
    check(entered, call, "no context");
    check(comm->state != IN_PROGRESS, call, "the call before is in progress");
    if (comm->state != SUCCESS) return comm->state;
    kernel->stream = a_stream(stream, call);
    kernel->ticket = ++comm->calls;
    comm->under_way++;
    if (kernel->ticket % 3) {
        put(kernel->stream, kernel_now, kernel);
        return SUCCESS;
    }
    comm->under_way++;
    comm->state = IN_PROGRESS;
    later(launch, kernel);
    return IN_PROGRESS;
}

static int start(const char *name, struct Call call, uint64_t from, size_t brought, uint64_t to,
                 size_t made, void *handle, void *stream) {
    struct Communicator *comm = a_communicator(handle, name);
    const size_t unit = size_of(call.dtype, name);
    check(call.op >= 0 && call.op <= 3, name, "an operation that the double does not know");
    check(call.root >= 0 && call.root < comm->size && call.count > 0, name, "root or count");
    if (brought) device(from, brought * unit, name);
    if (made) device(to, made * unit, name);
    struct Kernel *kernel = calloc(1, sizeof *kernel);
    *kernel = (struct Kernel){.comm = comm, .call = call, .from = from, .to = to};
    return submit(kernel, stream, name);
}

int ncclGetVersion(int *code) {
    *code = fault("version") >= 0 ? fault("version") : 21805;
    return SUCCESS;
}

const char *ncclGetErrorString(int code) {
    return code == REMOTE_ERROR ? "remote process exited or there was a network error" : "an error";
}

const char *ncclGetLastError(void *comm) {
    (void)comm;
    return "as the double was told";
}

int ncclGetUniqueId(UniqueId *id) {
    static _Atomic int count;
    const char *folder = getenv("FLEET_NCCL_DOUBLE_FOLDER");
    check(folder != NULL, "ncclGetUniqueId", "FLEET_NCCL_DOUBLE_FOLDER is not set");
    memset(id, 0, sizeof *id);
    int length = snprintf(id->internal, sizeof id->internal, ID_TEXT "%s/%d.%d", folder, (int)getpid(),
                          (int)count++);
    check(length < (int)sizeof id->internal, "ncclGetUniqueId", "the folder's name is too long");
    return SUCCESS;
}

static void *meet(void *argument) {
    struct Communicator *comm = argument;
    int file = open(comm->path, O_RDWR | O_CREAT, 0600);
    check(file >= 0 && ftruncate(file, shared_bytes()) == 0, "ncclCommInitRankConfig", "no file");
    comm->shared = mmap(NULL, shared_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(comm->shared != MAP_FAILED, "ncclCommInitRankConfig", "no shared memory");
    close(file);
    check(!comm->shared->sat[comm->rank]++, "ncclCommInitRankConfig", "two have one rank");
    comm->shared->joined++;
    if (UNTIL(comm, comm->shared->joined == comm->size)) {
        unlink(comm->path);
        comm->state = SUCCESS;
    }
    comm->under_way--;
    return NULL;
}

int ncclCommInitRankConfig(void **made, int size, UniqueId id, int rank, const struct Config *config) {
    const char *call = "ncclCommInitRankConfig";
    check(entered, call, "no context");
    check(config->magic == 0xcafebeef && config->size >= 24 && config->version >= 21400, call,
          "the configuration is none");
    check(config->blocking == 0, call, "blocking");
    check(!strncmp(id.internal, ID_TEXT, strlen(ID_TEXT)), call, "the id is none");
    check(size >= 2 && size <= RANKS_MAX && rank >= 0 && rank < size, call, "rank or size");
    struct Communicator *comm = calloc(1, sizeof *comm);
    comm->rank = rank;
    comm->size = size;
    comm->turn = 1;
    comm->under_way = 1;
    comm->state = IN_PROGRESS;
    strcpy(comm->path, id.internal + strlen(ID_TEXT));
    add(COMMUNICATOR, (uintptr_t)comm, 1);
    *made = comm;
    later(meet, comm);
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(void *handle, int *state) {
    *state = a_communicator(handle, "ncclCommGetAsyncError")->state;
    return SUCCESS;
}

int ncclCommAbort(void *handle) {
    struct Communicator *comm = a_communicator(handle, "ncclCommAbort");
    take_away(COMMUNICATOR, (uintptr_t)handle, "ncclCommAbort");
    comm->over = 1;
    while (comm->under_way) usleep(20);
    if (comm->shared) munmap(comm->shared, shared_bytes());
    free(comm);
    return SUCCESS;
}

int ncclAllReduce(uint64_t from, uint64_t to, size_t count, int dtype, int op, void *comm, void *stream) {
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
    int size = a_communicator(comm, "ncclReduceScatter")->size;
    return start("ncclReduceScatter", call, from, count * size, to, count, comm, stream);
}

int ncclAllGather(uint64_t from, uint64_t to, size_t count, int dtype, void *comm, void *stream) {
    struct Call call = {ALL_GATHER, dtype, 0, 0, count};
    int size = a_communicator(comm, "ncclAllGather")->size;
    return start("ncclAllGather", call, from, count, to, count * size, comm, stream);
}

static _Thread_local int depth, group_count;
static _Thread_local struct Message group[4 * RANKS_MAX];
static _Thread_local void *group_comm, *group_stream;

int ncclGroupStart(void) {
    check(depth++ == 0, "ncclGroupStart", "a group in a group");
    group_count = 0;
    return SUCCESS;
}

static int message(int sends, uint64_t at, size_t count, int dtype, int peer, void *comm, void *stream) {
    const char *call = sends ? "ncclSend" : "ncclRecv";
    const size_t bytes = count * size_of(dtype, call);
    check(depth == 1 && group_count < 4 * RANKS_MAX, call, "not in a group, or in a large one");
    check(!group_count || (comm == group_comm && stream == group_stream), call, "a mixed group");
    check(peer >= 0 && peer < a_communicator(comm, call)->size && bytes <= PAIR_BYTES, call,
          "peer or length");
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
    check(depth-- == 1, "ncclGroupEnd", "no group");
    if (!group_count) return SUCCESS;
    struct Kernel *kernel = calloc(1, sizeof *kernel);
    kernel->comm = group_comm;
    kernel->call.what = GROUP;
    kernel->message_count = group_count;
    kernel->messages = malloc(group_count * sizeof *group);
    memcpy(kernel->messages, group, group_count * sizeof *group);
    return submit(kernel, group_stream, "ncclGroupEnd");
}
