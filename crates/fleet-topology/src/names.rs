//! The one list of environment variables that Fleet reads or writes.
//!
//! Code names a variable by its constant here, never by a literal, so that this list is complete.

/// The component that reads a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The role maker, [`crate::Topology`].
    RoleMaker,
    /// `fleetrun`.
    Launcher,
    /// A worker, with parameter servers or without.
    Worker,
    /// A parameter server.
    Server,
    /// Users' scripts; Fleet only writes it.
    Script,
    /// None: a documented name for a feature that Fleet does not support.
    Unused,
}

/// The form of value that the readers of a variable expect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Anything,
    /// An integer that is at least this.
    Integer(i64),
    Port,
    Switch,
    /// A number from 0 to 1.
    Fraction,
    Endpoint,
    Endpoints,
    /// A size in bytes with a unit, such as `2GiB`.
    Size,
    /// `N` or `MIN:MAX`.
    NodeRange,
    OneOf(&'static [&'static str]),
}

/// An environment variable of the list.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name in the environment.
    pub name: &'static str,
    /// The values that its readers accept.
    pub(crate) form: Form,
    /// Value used when the variable is absent; empty if there is no default.
    pub default: &'static str,
    /// Meaning of the variable, as `fleet env` shows it.
    pub meaning: &'static str,
    /// The reason why a documented variable has no effect in Fleet.
    pub no_effect: Option<&'static str>,
    /// The components that read it.
    pub readers: &'static [Reader],
    /// Whether the value must never be shown.
    pub secret: bool,
}

/// Finds a variable by name.
///
/// ```
/// use fleet_topology::names;
/// assert!(names::find(names::FLEET_TOKEN).unwrap().secret);
/// assert!(names::find("HOME").is_none());
/// ```
pub fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| variable.name == name)
}

/// The value in the form that tables may show: secrets are masked.
///
/// ```
/// use fleet_topology::names;
/// assert_eq!(names::shown("PADDLE_TRAINER_ID", "0"), "0");
/// assert_eq!(names::shown("FLEET_TOKEN", "0123456789abcdef"), "***");
/// ```
pub fn shown<'a>(name: &str, value: &'a str) -> &'a str {
    match find(name) {
        Some(variable) if variable.secret && !value.is_empty() => "***",
        _ => value,
    }
}

/// Declares the variables, grouped by where they are set: a constant for each name, and the table.
macro_rules! variables {
    ($($name:ident $(= $text:literal)?: [$($reader:ident),+] $(as $form:ident $(($of:expr))?)?,
       $(secret: $secret:literal,)? $(default: $default:literal,)? $meaning:literal
       $(, no effect: $no_effect:literal)?;)*) => {
        $(#[doc = concat!($meaning, ".")]
        pub const $name: &str = variables!(@first $($text,)? stringify!($name));)*

        /// All variables.
        pub const VARIABLES: &[Variable] = &[$(Variable {
            name: $name,
            form: variables!(@first $(Form::$form $(($of))?,)? Form::Anything),
            default: variables!(@first $($default,)? ""),
            meaning: $meaning,
            no_effect: variables!(@first $(Some($no_effect),)? None),
            readers: &[$(Reader::$reader),+],
            secret: variables!(@first $($secret,)? false),
        }),*];
    };
    (@first $first:expr $(, $others:expr)*) => { $first };
}

variables! {
    // Topology of a collective job.
    PADDLE_TRAINER_ID: [RoleMaker] as Integer(0), "Rank of the worker, from 0";
    PADDLE_TRAINERS_NUM: [RoleMaker] as Integer(1), "Number of workers in the job";
    PADDLE_TRAINER_ENDPOINTS: [RoleMaker] as Endpoints,
        "HOST:PORT of every worker by rank, separated by commas";
    PADDLE_CURRENT_ENDPOINT: [RoleMaker] as Endpoint, "HOST:PORT of this worker";
    PADDLE_RANK_IN_NODE: [RoleMaker] as Integer(0), "Rank of the worker on its host";
    PADDLE_LOCAL_DEVICE_IDS: [RoleMaker], "Devices of this worker";
    PADDLE_WORLD_DEVICE_IDS: [RoleMaker], "Devices of all workers by rank, separated by commas";
    PADDLE_DISTRI_BACKEND: [RoleMaker] as OneOf(&["gloo", "nccl"]), default: "gloo",
        "Backend of collectives: gloo (the host's transports), or nccl, as FLEET_NCCL=1. fleetrun \
         sets it for scripts, and FLEET_NCCL by --backend";
    FLAGS_SELECTED_GPUS = "FLAGS_selected_gpus": [RoleMaker],
        "GPU of this process: an index into CUDA_VISIBLE_DEVICES";
    FLAGS_SELECTED_XPUS = "FLAGS_selected_xpus": [Script],
        "Like FLAGS_selected_gpus, for XPUs; only written for scripts";
    CUDA_VISIBLE_DEVICES: [Launcher], default: "all", "GPUs visible to a process";
    XPU_VISIBLE_DEVICES: [Script], "Only written for scripts";
    // Topology of a parameter-server job.
    TRAINING_ROLE: [RoleMaker] as OneOf(&["TRAINER", "PSERVER", "HETER_TRAINER", "COORDINATOR"]),
        "TRAINER, PSERVER, HETER_TRAINER or COORDINATOR";
    PADDLE_PSERVERS_IP_PORT_LIST: [RoleMaker] as Endpoints,
        "HOST:PORT of every server, separated by commas; if absent, the process trains alone";
    PADDLE_COORDINATOR_ENDPOINTS: [RoleMaker] as Endpoints, "HOST:PORT of every coordinator";
    POD_IP: [RoleMaker, Launcher], "Address of this process's host";
    PADDLE_PORT: [RoleMaker] as Port, "Port of this process";
    PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST: [RoleMaker] as Endpoints,
        "HOST:PORT of every heterogeneous worker";
    PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST: [RoleMaker] as Endpoints,
        "HOST:PORT of the workers of the next stage";
    PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST: [RoleMaker] as Endpoints,
        "HOST:PORT of the workers of the previous stage";
    PADDLE_STAGE_TRAINERS_NUM: [RoleMaker], "Number of workers in each stage: [1, 2]";
    STAGE_ID: [RoleMaker] as Integer(1), "The stage of this process, from 1 (the workers)";
    STAGE_NUM: [RoleMaker] as Integer(1), "Number of stages in the job";
    HETER_DEVICE_TYPE: [RoleMaker], "The kind of device that the stage runs on: cpu, gpu";
    PADDLE_WITH_GLOO: [RoleMaker, Launcher] as OneOf(&["0", "1", "2"]), default: "0",
        "Groups of fleet.util: 0 and 1 workers; 2 also servers, and workers with servers";
    PADDLE_GLOO_RENDEZVOUS: [RoleMaker] as OneOf(&["1", "2", "3"]),
        "Where processes meet without FLEET_STORE if PADDLE_WITH_GLOO is 1 or 2: 1 a file in \
         PADDLE_GLOO_FS_PATH of HDFS, 2 a file in PADDLE_GLOO_FS_PATH, 3 \
         PADDLE_GLOO_HTTP_ENDPOINT";
    PADDLE_GLOO_FS_NAME: [RoleMaker], "Address of HDFS for rendezvous 1: hdfs://HOST:PORT";
    PADDLE_GLOO_FS_UGI: [RoleMaker], secret: true,
        "USER,PASSWORD for rendezvous 1; visible in the arguments of hadoop while it runs";
    PADDLE_GLOO_FS_PATH: [RoleMaker], "Folder for rendezvous 1 and 2; all processes see it";
    PADDLE_GLOO_HTTP_ENDPOINT: [RoleMaker] as Endpoint,
        "HOST:PORT for rendezvous 3, where worker 0 hosts the store";
    SYS_JOB_ID: [RoleMaker], "Job id that separates jobs with the same rendezvous";
    // Settings that launchers and clusters pass to the launcher.
    PADDLE_TRAINERS: [Launcher], "Hosts of the job, separated by commas; same as --ips";
    TRAINER_PORTS_NUM: [Launcher] as Integer(1),
        "Number of ports that the cluster assigned to the job";
    DISTRIBUTED_TRAINER_ENDPOINTS: [Launcher] as Endpoints,
        "Endpoints assigned by the cluster; they override generated ones";
    FLAGS_START_PORT: [Launcher] as Port,
        "First of the fixed ports; if absent, the system chooses free ports";
    PADDLE_MASTER: [Launcher, Script] as Endpoint,
        "HOST:PORT of the rendezvous of machines; same as --master";
    PADDLE_NNODES: [Launcher, Script] as NodeRange,
        "Number of machines, N or MIN:MAX; same as --nnodes";
    PADDLE_GLOBAL_SIZE: [Script] as Integer(1), "Number of processes in the job";
    PADDLE_LOCAL_SIZE: [Script] as Integer(1), "Number of processes on this machine";
    PADDLE_GLOBAL_RANK: [Script] as Integer(0), "Rank of the process in the job";
    PADDLE_LOCAL_RANK: [Script] as Integer(0), "Rank of the process on this machine";
    RANK: [Script], "PADDLE_TRAINER_ID, for PyTorch scripts";
    WORLD_SIZE: [Script, RoleMaker],
        "PADDLE_TRAINERS_NUM, for PyTorch scripts; if torchrun sets it above 1, Fleet refuses to \
         train alone";
    LOCAL_RANK: [Script], "PADDLE_LOCAL_RANK, for PyTorch scripts";
    LOCAL_WORLD_SIZE: [Script], "PADDLE_LOCAL_SIZE, for PyTorch scripts";
    GROUP_RANK: [Script], "Rank of this machine, for PyTorch scripts";
    MASTER_ADDR: [Script], "The host of the first worker, for PyTorch scripts";
    MASTER_PORT: [Script], "Free port for a listener of rank 0, for PyTorch scripts";
    PADDLE_LOG_DIR: [Script], "Folder of the launcher's logs";
    PADDLE_ROLE: [Script] as OneOf(&["TRAINER", "PSERVER", "HETER_TRAINER", "COORDINATOR"]),
        "Same as TRAINING_ROLE, for newer scripts";
    POD_NAME: [Script], "Name of this machine in the job";
    PADDLE_ELASTIC_JOB_ID: [Launcher], "Same as --job_id";
    PADDLE_ELASTIC_NP: [Launcher] as NodeRange, "Same as --nnodes: N or MIN:MAX";
    PADDLE_ELASTIC_SERVER: [Launcher],
        "Same as --elastic_server: the etcd for the rendezvous of machines";
    PADDLE_ELASTIC_TIMEOUT: [Launcher] as Integer(1), default: "30",
        "Seconds that an elastic job waits for optional machines";
    PADDLE_ELASTIC_TTL: [Launcher] as Integer(1), default: "10",
        "Timeout in seconds after which an unresponsive machine is lost";
    PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL: [Launcher],
        "Same as --elastic_level: 1 restart at the same size, 2 at any size within MIN:MAX";
    NO_COLOR: [Launcher], "Any value disables colours on the terminal";
    PYTHON: [Launcher], "Interpreter for Python scripts; same as --python";
    // Settings of a running job.
    FLEET_JOB_ID: [RoleMaker], "Name of the job";
    FLEET_STORE: [RoleMaker] as Endpoint, "HOST:PORT of the job's key-value store";
    FLEET_TOKEN: [RoleMaker, Launcher], secret: true,
        "Secret of the job; every process that joins authenticates with it";
    FLEET_OPEN: [RoleMaker] as OneOf(&["loopback"]),
        "loopback: a job without FLEET_TOKEN whose processes all have loopback addresses; any user \
         of the machine can join it";
    FLEET_TOKEN_FILE: [Launcher],
        "File with the job's secret, for jobs on several machines; same as --token_file";
    FLEET_ETCD_CA: [Launcher], "Same as --etcd_ca: PEM file with etcd's authority";
    FLEET_ETCD_CERT: [Launcher],
        "Same as --etcd_cert: PEM file with the certificate of the launcher";
    FLEET_ETCD_KEY: [Launcher], "Same as --etcd_key: PEM file with its key";
    FLEET_ETCD_USER: [Launcher], "Same as --etcd_user: the user of etcd";
    FLEET_ETCD_PASSWORD_FILE: [Launcher],
        "Same as --etcd_password_file: the file with its password";
    FLEET_RESTART_COUNT: [RoleMaker] as Integer(0), default: "0",
        "Number of restarts of the job; if above 0, a script resumes from its checkpoint";
    FLEET_LAUNCH: [Launcher],
        "Id of the launch, in every process, so that the launcher can end all of them";
    FLEET_SHARED_MEMORY: [RoleMaker] as Switch, default: "1",
        "0: ranks on one machine also use sockets";
    FLEET_MPI_LIBRARY: [RoleMaker],
        "The MPI library or its folder, for jobs started by mpirun; by default the system's";
    FLEET_NCCL: [RoleMaker] as Switch, default: "0",
        "1: collectives use NCCL, one GPU per worker (fleetrun --backend nccl)";
    FLEET_NCCL_LIBRARY: [RoleMaker], "libnccl.so.2, or its folder; by default the system's";
    OMPI_COMM_WORLD_SIZE: [RoleMaker] as Integer(1),
        "Number of processes that Open MPI's mpirun started";
    PMI_SIZE: [RoleMaker] as Integer(1),
        "Number of processes that the mpirun of MPICH or Intel MPI started";
    SLURM_NTASKS: [RoleMaker],
        "Number of processes that Slurm started; if above 1, Fleet refuses to train alone";
    FLEET_PROGRESS: [Script], "File for a progress line that the launcher shows below the log";
    FLEET_EXPENDABLE: [Worker, Launcher],
        "File that a parameter-server worker creates when the job can continue without it";
    FLEET_REPORT: [Worker, Server, Launcher],
        "File for a process's status reports: joined, serving, finished, failed and why";
    FLEET_SILENCE_TIMEOUT: [RoleMaker], default: "30",
        "Timeout in seconds after which an unresponsive process is lost (fleetrun \
         --silence_timeout)";
    FLEET_MEMORY: [Worker] as Size,
        "Limit on the variables of a worker, such as 2GiB; a program that needs more is an error \
         (fleetrun --memory)";
    FLAGS_LAUNCH_BARRIER: [Worker] as Switch, default: "1", "Workers wait until the servers listen";
    FLEET_SAVE_ROOT: [Server],
        "The only folder in which servers save and load, which may be remote; by default any; same \
         as --save_root";
    FLEET_GRPC_PORT: [Server] as Port,
        "Port of the servers' gRPC services: control, health, reflection (feature grpc); 0: any \
         free port";
    FLEET_GRPC_CERT: [Server],
        "PEM file with the servers' gRPC certificate (feature grpc); with FLEET_GRPC_KEY";
    FLEET_GRPC_KEY: [Server], "PEM file with the key of the certificate";
    PSERVER_DEBUG: [Worker, Server] as Switch, default: "0",
        "Servers and workers print a description of their tables";
    CPU_NUM: [RoleMaker] as Integer(1),
        "Number of threads of a worker where neither the strategy nor the program gives one; by \
         default the worker's share of the cores";
    FLAGS_COMMUNICATOR_MAX_MERGE_VAR_NUM = "FLAGS_communicator_max_merge_var_num": [Worker]
        as Integer(1), default: "CPU_NUM, else 1", "Gradients merged into one push";
    FLAGS_COMMUNICATOR_SEND_QUEUE_SIZE = "FLAGS_communicator_send_queue_size": [Worker]
        as Integer(1),
        default: "CPU_NUM, else 1", "Length of the queue of gradients per variable";
    FLAGS_COMMUNICATOR_SEND_WAIT_TIMES = "FLAGS_communicator_send_wait_times": [Worker]
        as Integer(0),
        default: "5", "Polls of an empty queue before a smaller batch of gradients is sent";
    FLAGS_COMMUNICATOR_THREAD_POOL_SIZE = "FLAGS_communicator_thread_pool_size": [Worker]
        as Integer(1), default: "5", "Number of sending threads";
    FLAGS_COMMUNICATOR_INDEPENDENT_RECV_THREAD = "FLAGS_communicator_independent_recv_thread":
        [Worker] as Switch, default: "1", "A separate thread fetches parameters";
    FLAGS_COMMUNICATOR_MIN_SEND_GRAD_NUM_BEFORE_RECV =
        "FLAGS_communicator_min_send_grad_num_before_recv": [Worker]
        as Integer(1), default: "CPU_NUM, else 1",
        "Gradients sent between two fetches of parameters";
    FLAGS_COMMUNICATOR_IS_SGD_OPTIMIZER = "FLAGS_communicator_is_sgd_optimizer": [Worker] as Switch,
        default: "1", "The optimizer is plain SGD, so that updates may be merged";
    FLAGS_RPC_SEND_THREAD_NUM = "FLAGS_rpc_send_thread_num": [Worker] as Integer(1),
        "Number of sending threads of a worker if FLAGS_communicator_thread_pool_size is absent";
    FLAGS_RPC_GET_THREAD_NUM = "FLAGS_rpc_get_thread_num": [Worker] as Integer(1), default: "1",
        "Number of dense tables that a worker receives at a time";
    FLAGS_RPC_PREFETCH_THREAD_NUM = "FLAGS_rpc_prefetch_thread_num": [Worker] as Integer(1),
        default: "1", "Number of tables whose rows a worker looks up ahead at a time";
    FLAGS_RPC_DEADLINE = "FLAGS_rpc_deadline": [Worker] as Integer(1), default: "180000",
        "Time in milliseconds for which a call to a server is retried";
    // Values of fields that a strategy does not assign.
    FLAGS_FUSE_PARAMETER_MEMORY_SIZE = "FLAGS_fuse_parameter_memory_size": [Worker] as Integer(-1),
        default: "32", "Strategy field fuse_grad_size_in_MB, the size of a bucket of gradients";
    FLAGS_FUSE_PARAMETER_GROUPS_SIZE = "FLAGS_fuse_parameter_groups_size": [Worker] as Integer(1),
        default: "50", "Strategy field fuse_grad_size_in_TFLOPS, the parameters in a bucket";
    FLAGS_SYNC_NCCL_ALLREDUCE = "FLAGS_sync_nccl_allreduce": [Worker] as Switch,
        "Strategy field sync_nccl_allreduce; 1: the computing thread sums gradients, without \
         overlap";
    FLAGS_CUDNN_EXHAUSTIVE_SEARCH = "FLAGS_cudnn_exhaustive_search": [Worker] as Switch,
        "Strategy field of that name; no effect";
    FLAGS_CONV_WORKSPACE_SIZE_LIMIT = "FLAGS_conv_workspace_size_limit": [Worker] as Integer(0),
        "Strategy field of that name; no effect";
    FLAGS_CUDNN_BATCHNORM_SPATIAL_PERSISTENT = "FLAGS_cudnn_batchnorm_spatial_persistent": [Worker]
        as Switch, "Strategy field of that name; no effect";
    FLEET_OVERVIEW: [Worker] as OneOf(&["changed", "full", "none"]), default: "changed",
        "Rows of the strategy's overview that the first worker prints";
    // Documented settings for GPUs. NCCL itself reads those whose names start with `NCCL_`.
    FLAGS_ENABLE_PARALLEL_GRAPH = "FLAGS_enable_parallel_graph": [Worker] as Switch,
        default: "0",
        "1: a worker uses its whole share of the cores where neither the strategy nor the program \
         gives a number of threads, even with CPU_NUM";
    FLAGS_FRACTION_OF_GPU_MEMORY_TO_USE = "FLAGS_fraction_of_gpu_memory_to_use": [Unused]
        as Fraction,
        "Fraction of GPU memory to reserve", no effect: "memory is planned";
    NCCL_SOCKET_IFNAME: [Script], "Network interface that NCCL uses";
    NCCL_P2P_DISABLE: [Script] as Switch, default: "0",
        "1 disables peer-to-peer copies between GPUs";
    NCCL_IB_DISABLE: [Script] as Switch, default: "0", "1 disables InfiniBand in NCCL";
    NCCL_IB_CUDA_SUPPORT: [Script] as Switch,
        "InfiniBand accesses GPU memory directly (GPUDirect RDMA)";
    NCCL_DEBUG: [Script], "Log level of NCCL: VERSION, WARN, INFO";
}
