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
    /// A worker of a parameter-server job.
    Worker,
    /// A parameter server.
    Server,
    /// Users' scripts; Fleet only writes it.
    Script,
    /// None: a documented name for a feature that Fleet does not support.
    Unused,
}

/// An environment variable of the list.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    /// Value used when the variable is absent; empty if there is no default.
    pub default: &'static str,
    pub meaning: &'static str,
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

// Topology of a collective job.
pub const PADDLE_TRAINER_ID: &str = "PADDLE_TRAINER_ID";
pub const PADDLE_TRAINERS_NUM: &str = "PADDLE_TRAINERS_NUM";
pub const PADDLE_TRAINER_ENDPOINTS: &str = "PADDLE_TRAINER_ENDPOINTS";
pub const PADDLE_CURRENT_ENDPOINT: &str = "PADDLE_CURRENT_ENDPOINT";
pub const PADDLE_RANK_IN_NODE: &str = "PADDLE_RANK_IN_NODE";
pub const PADDLE_LOCAL_DEVICE_IDS: &str = "PADDLE_LOCAL_DEVICE_IDS";
pub const PADDLE_WORLD_DEVICE_IDS: &str = "PADDLE_WORLD_DEVICE_IDS";
pub const PADDLE_DISTRI_BACKEND: &str = "PADDLE_DISTRI_BACKEND";
pub const FLAGS_SELECTED_GPUS: &str = "FLAGS_selected_gpus";
pub const FLAGS_SELECTED_XPUS: &str = "FLAGS_selected_xpus";
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
pub const XPU_VISIBLE_DEVICES: &str = "XPU_VISIBLE_DEVICES";
// Topology of a parameter-server job.
pub const TRAINING_ROLE: &str = "TRAINING_ROLE";
pub const PADDLE_PSERVERS_IP_PORT_LIST: &str = "PADDLE_PSERVERS_IP_PORT_LIST";
pub const PADDLE_COORDINATOR_ENDPOINTS: &str = "PADDLE_COORDINATOR_ENDPOINTS";
pub const POD_IP: &str = "POD_IP";
pub const PADDLE_PORT: &str = "PADDLE_PORT";
pub const PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST: &str = "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST";
pub const PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST: &str = "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST";
pub const PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST: &str =
    "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST";
pub const PADDLE_STAGE_TRAINERS_NUM: &str = "PADDLE_STAGE_TRAINERS_NUM";
pub const STAGE_ID: &str = "STAGE_ID";
pub const STAGE_NUM: &str = "STAGE_NUM";
pub const HETER_DEVICE_TYPE: &str = "HETER_DEVICE_TYPE";
pub const PADDLE_WITH_GLOO: &str = "PADDLE_WITH_GLOO";
pub const PADDLE_GLOO_RENDEZVOUS: &str = "PADDLE_GLOO_RENDEZVOUS";
pub const PADDLE_GLOO_FS_NAME: &str = "PADDLE_GLOO_FS_NAME";
pub const PADDLE_GLOO_FS_UGI: &str = "PADDLE_GLOO_FS_UGI";
pub const PADDLE_GLOO_FS_PATH: &str = "PADDLE_GLOO_FS_PATH";
pub const PADDLE_GLOO_HTTP_ENDPOINT: &str = "PADDLE_GLOO_HTTP_ENDPOINT";
pub const SYS_JOB_ID: &str = "SYS_JOB_ID";
// Settings that launchers and clusters pass to the launcher.
pub const PADDLE_TRAINERS: &str = "PADDLE_TRAINERS";
pub const TRAINER_PORTS_NUM: &str = "TRAINER_PORTS_NUM";
pub const DISTRIBUTED_TRAINER_ENDPOINTS: &str = "DISTRIBUTED_TRAINER_ENDPOINTS";
pub const FLAGS_START_PORT: &str = "FLAGS_START_PORT";
pub const PADDLE_MASTER: &str = "PADDLE_MASTER";
pub const PADDLE_NNODES: &str = "PADDLE_NNODES";
pub const PADDLE_GLOBAL_SIZE: &str = "PADDLE_GLOBAL_SIZE";
pub const PADDLE_LOCAL_SIZE: &str = "PADDLE_LOCAL_SIZE";
pub const PADDLE_GLOBAL_RANK: &str = "PADDLE_GLOBAL_RANK";
pub const PADDLE_LOCAL_RANK: &str = "PADDLE_LOCAL_RANK";
pub const RANK: &str = "RANK";
pub const WORLD_SIZE: &str = "WORLD_SIZE";
pub const LOCAL_RANK: &str = "LOCAL_RANK";
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
pub const GROUP_RANK: &str = "GROUP_RANK";
pub const MASTER_ADDR: &str = "MASTER_ADDR";
pub const MASTER_PORT: &str = "MASTER_PORT";
pub const PADDLE_LOG_DIR: &str = "PADDLE_LOG_DIR";
pub const PADDLE_ROLE: &str = "PADDLE_ROLE";
pub const POD_NAME: &str = "POD_NAME";
pub const PADDLE_ELASTIC_JOB_ID: &str = "PADDLE_ELASTIC_JOB_ID";
pub const PADDLE_ELASTIC_NP: &str = "PADDLE_ELASTIC_NP";
pub const PADDLE_ELASTIC_SERVER: &str = "PADDLE_ELASTIC_SERVER";
pub const PADDLE_ELASTIC_TIMEOUT: &str = "PADDLE_ELASTIC_TIMEOUT";
pub const PADDLE_ELASTIC_TTL: &str = "PADDLE_ELASTIC_TTL";
pub const PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL: &str = "PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL";
pub const NO_COLOR: &str = "NO_COLOR";
pub const PYTHON: &str = "PYTHON";
// Settings of a running job.
pub const FLEET_JOB_ID: &str = "FLEET_JOB_ID";
pub const FLEET_STORE: &str = "FLEET_STORE";
pub const FLEET_TOKEN: &str = "FLEET_TOKEN";
pub const FLEET_TOKEN_FILE: &str = "FLEET_TOKEN_FILE";
pub const FLEET_RESTART_COUNT: &str = "FLEET_RESTART_COUNT";
pub const FLEET_LAUNCH: &str = "FLEET_LAUNCH";
pub const FLEET_SHARED_MEMORY: &str = "FLEET_SHARED_MEMORY";
pub const FLEET_MPI_LIBRARY: &str = "FLEET_MPI_LIBRARY";
pub const FLEET_NCCL: &str = "FLEET_NCCL";
pub const FLEET_NCCL_LIBRARY: &str = "FLEET_NCCL_LIBRARY";
pub const OMPI_COMM_WORLD_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
pub const PMI_SIZE: &str = "PMI_SIZE";
pub const SLURM_NTASKS: &str = "SLURM_NTASKS";
pub const FLEET_PROGRESS: &str = "FLEET_PROGRESS";
pub const FLEET_EXPENDABLE: &str = "FLEET_EXPENDABLE";
pub const FLEET_REPORT: &str = "FLEET_REPORT";
pub const FLEET_SILENCE_TIMEOUT: &str = "FLEET_SILENCE_TIMEOUT";
pub const FLAGS_LAUNCH_BARRIER: &str = "FLAGS_LAUNCH_BARRIER";
pub const FLEET_SAVE_ROOT: &str = "FLEET_SAVE_ROOT";
pub const FLEET_GRPC_PORT: &str = "FLEET_GRPC_PORT";
pub const FLEET_GRPC_CERT: &str = "FLEET_GRPC_CERT";
pub const FLEET_GRPC_KEY: &str = "FLEET_GRPC_KEY";
pub const PSERVER_DEBUG: &str = "PSERVER_DEBUG";
pub const CPU_NUM: &str = "CPU_NUM";
pub const FLAGS_COMMUNICATOR_MAX_MERGE_VAR_NUM: &str = "FLAGS_communicator_max_merge_var_num";
pub const FLAGS_COMMUNICATOR_SEND_QUEUE_SIZE: &str = "FLAGS_communicator_send_queue_size";
pub const FLAGS_COMMUNICATOR_SEND_WAIT_TIMES: &str = "FLAGS_communicator_send_wait_times";
pub const FLAGS_COMMUNICATOR_THREAD_POOL_SIZE: &str = "FLAGS_communicator_thread_pool_size";
pub const FLAGS_COMMUNICATOR_INDEPENDENT_RECV_THREAD: &str =
    "FLAGS_communicator_independent_recv_thread";
pub const FLAGS_COMMUNICATOR_MIN_SEND_GRAD_NUM_BEFORE_RECV: &str =
    "FLAGS_communicator_min_send_grad_num_before_recv";
pub const FLAGS_COMMUNICATOR_IS_SGD_OPTIMIZER: &str = "FLAGS_communicator_is_sgd_optimizer";
pub const FLAGS_RPC_SEND_THREAD_NUM: &str = "FLAGS_rpc_send_thread_num";
pub const FLAGS_RPC_DEADLINE: &str = "FLAGS_rpc_deadline";
// Written by strategies for scripts that read them.
pub const FLAGS_FUSE_PARAMETER_MEMORY_SIZE: &str = "FLAGS_fuse_parameter_memory_size";
pub const FLAGS_FUSE_PARAMETER_GROUPS_SIZE: &str = "FLAGS_fuse_parameter_groups_size";
pub const FLAGS_SYNC_NCCL_ALLREDUCE: &str = "FLAGS_sync_nccl_allreduce";
pub const FLAGS_CUDNN_EXHAUSTIVE_SEARCH: &str = "FLAGS_cudnn_exhaustive_search";
pub const FLAGS_CONV_WORKSPACE_SIZE_LIMIT: &str = "FLAGS_conv_workspace_size_limit";
pub const FLAGS_CUDNN_BATCHNORM_SPATIAL_PERSISTENT: &str =
    "FLAGS_cudnn_batchnorm_spatial_persistent";
pub const FLAGS_ENABLE_PARALLEL_GRAPH: &str = "FLAGS_enable_parallel_graph";
pub const FLAGS_FRACTION_OF_GPU_MEMORY_TO_USE: &str = "FLAGS_fraction_of_gpu_memory_to_use";
pub const NCCL_SOCKET_IFNAME: &str = "NCCL_SOCKET_IFNAME";
pub const NCCL_P2P_DISABLE: &str = "NCCL_P2P_DISABLE";
pub const NCCL_IB_DISABLE: &str = "NCCL_IB_DISABLE";
pub const NCCL_IB_CUDA_SUPPORT: &str = "NCCL_IB_CUDA_SUPPORT";
pub const NCCL_DEBUG: &str = "NCCL_DEBUG";

/// All variables, grouped by where they are set.
pub const VARIABLES: &[Variable] = &[
    // Topology of a collective job.
    row(PADDLE_TRAINER_ID, "", "Rank of the worker, from 0", &[Reader::RoleMaker]),
    row(PADDLE_TRAINERS_NUM, "", "Number of workers in the job", &[Reader::RoleMaker]),
    row(
        PADDLE_TRAINER_ENDPOINTS,
        "",
        "HOST:PORT of every worker by rank, separated by commas",
        &[Reader::RoleMaker],
    ),
    row(PADDLE_CURRENT_ENDPOINT, "", "HOST:PORT of this worker", &[Reader::RoleMaker]),
    row(PADDLE_RANK_IN_NODE, "", "Rank of the worker on its host", &[Reader::RoleMaker]),
    row(PADDLE_LOCAL_DEVICE_IDS, "", "Devices of this worker", &[Reader::RoleMaker]),
    row(
        PADDLE_WORLD_DEVICE_IDS,
        "",
        "Devices of all workers by rank, separated by commas",
        &[Reader::RoleMaker],
    ),
    row(
        PADDLE_DISTRI_BACKEND,
        "",
        "Backend of collectives: gloo (CPU) or nccl (GPU)",
        &[Reader::Unused],
    ),
    row(
        FLAGS_SELECTED_GPUS,
        "",
        "GPU of this process: an index into CUDA_VISIBLE_DEVICES",
        &[Reader::RoleMaker],
    ),
    row(
        FLAGS_SELECTED_XPUS,
        "",
        "Like FLAGS_selected_gpus, for XPUs; only written for scripts",
        &[Reader::Script],
    ),
    row(CUDA_VISIBLE_DEVICES, "all", "GPUs visible to a process", &[Reader::Launcher]),
    row(XPU_VISIBLE_DEVICES, "", "Only written for scripts", &[Reader::Script]),
    // Topology of a parameter-server job.
    row(TRAINING_ROLE, "", "TRAINER, PSERVER, HETER_TRAINER or COORDINATOR", &[Reader::RoleMaker]),
    row(
        PADDLE_PSERVERS_IP_PORT_LIST,
        "",
        "HOST:PORT of every server, separated by commas; if absent, the process trains alone",
        &[Reader::RoleMaker],
    ),
    row(PADDLE_COORDINATOR_ENDPOINTS, "", "HOST:PORT of every coordinator", &[Reader::RoleMaker]),
    row(POD_IP, "", "Address of this process's host", &[Reader::RoleMaker, Reader::Launcher]),
    row(PADDLE_PORT, "", "Port of this process", &[Reader::RoleMaker]),
    row(
        PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST,
        "",
        "HOST:PORT of every heterogeneous worker",
        &[Reader::RoleMaker],
    ),
    row(
        PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST,
        "",
        "HOST:PORT of the workers of the next stage",
        &[Reader::RoleMaker],
    ),
    row(
        PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST,
        "",
        "HOST:PORT of the workers of the previous stage",
        &[Reader::RoleMaker],
    ),
    row(
        PADDLE_STAGE_TRAINERS_NUM,
        "",
        "Number of workers in each stage: [1, 2]",
        &[Reader::RoleMaker],
    ),
    row(STAGE_ID, "", "The stage of this process, from 1 (the workers)", &[Reader::RoleMaker]),
    row(STAGE_NUM, "", "Number of stages in the job", &[Reader::RoleMaker]),
    row(
        HETER_DEVICE_TYPE,
        "",
        "The kind of device that the stage runs on: cpu, gpu",
        &[Reader::RoleMaker],
    ),
    row(
        PADDLE_WITH_GLOO,
        "0",
        "Members of the gloo barrier service: 0 none, 1 workers, 2 workers and servers",
        &[Reader::RoleMaker, Reader::Launcher],
    ),
    row(
        PADDLE_GLOO_RENDEZVOUS,
        "",
        "Rendezvous of gloo: 1 HDFS, 2 files, 3 HTTP",
        &[Reader::RoleMaker],
    ),
    row(PADDLE_GLOO_FS_NAME, "", "HDFS name for rendezvous 1", &[Reader::RoleMaker]),
    secret(PADDLE_GLOO_FS_UGI, "", "HDFS user and password for rendezvous 1", &[Reader::RoleMaker]),
    row(PADDLE_GLOO_FS_PATH, "", "Folder for rendezvous 1 and 2", &[Reader::RoleMaker]),
    row(PADDLE_GLOO_HTTP_ENDPOINT, "", "HOST:PORT for rendezvous 3", &[Reader::RoleMaker]),
    row(
        SYS_JOB_ID,
        "",
        "Job id that separates jobs with the same rendezvous",
        &[Reader::RoleMaker],
    ),
    // Settings that launchers and clusters pass to the launcher.
    row(
        PADDLE_TRAINERS,
        "",
        "Hosts of the job, separated by commas; same as --ips",
        &[Reader::Launcher],
    ),
    row(
        TRAINER_PORTS_NUM,
        "",
        "Number of ports that the cluster assigned to the job",
        &[Reader::Launcher],
    ),
    row(
        DISTRIBUTED_TRAINER_ENDPOINTS,
        "",
        "Endpoints assigned by the cluster; they override generated ones",
        &[Reader::Launcher],
    ),
    row(
        FLAGS_START_PORT,
        "",
        "First of the fixed ports; if absent, the system chooses free ports",
        &[Reader::Launcher],
    ),
    row(
        PADDLE_MASTER,
        "",
        "HOST:PORT of the rendezvous of machines; same as --master",
        &[Reader::Launcher, Reader::Script],
    ),
    row(
        PADDLE_NNODES,
        "",
        "Number of machines, N or MIN:MAX; same as --nnodes",
        &[Reader::Launcher, Reader::Script],
    ),
    row(PADDLE_GLOBAL_SIZE, "", "Number of processes in the job", &[Reader::Script]),
    row(PADDLE_LOCAL_SIZE, "", "Number of processes on this machine", &[Reader::Script]),
    row(PADDLE_GLOBAL_RANK, "", "Rank of the process in the job", &[Reader::Script]),
    row(PADDLE_LOCAL_RANK, "", "Rank of the process on this machine", &[Reader::Script]),
    row(RANK, "", "PADDLE_TRAINER_ID, for PyTorch scripts", &[Reader::Script]),
    row(
        WORLD_SIZE,
        "",
        "PADDLE_TRAINERS_NUM, for PyTorch scripts; if torchrun sets it above 1, Fleet refuses to \
         train alone",
        &[Reader::Script, Reader::RoleMaker],
    ),
    row(LOCAL_RANK, "", "PADDLE_LOCAL_RANK, for PyTorch scripts", &[Reader::Script]),
    row(LOCAL_WORLD_SIZE, "", "PADDLE_LOCAL_SIZE, for PyTorch scripts", &[Reader::Script]),
    row(GROUP_RANK, "", "Rank of this machine, for PyTorch scripts", &[Reader::Script]),
    row(MASTER_ADDR, "", "The host of the first worker, for PyTorch scripts", &[Reader::Script]),
    row(
        MASTER_PORT,
        "",
        "Free port for a listener of rank 0, for PyTorch scripts",
        &[Reader::Script],
    ),
    row(PADDLE_LOG_DIR, "", "Folder of the launcher's logs", &[Reader::Script]),
    row(PADDLE_ROLE, "", "Same as TRAINING_ROLE, for newer scripts", &[Reader::Script]),
    row(POD_NAME, "", "Name of this machine in the job", &[Reader::Script]),
    row(PADDLE_ELASTIC_JOB_ID, "", "Same as --job_id", &[Reader::Launcher]),
    row(PADDLE_ELASTIC_NP, "", "Same as --nnodes: N or MIN:MAX", &[Reader::Launcher]),
    row(
        PADDLE_ELASTIC_SERVER,
        "",
        "Same as --elastic_server: the etcd for the rendezvous of machines",
        &[Reader::Launcher],
    ),
    row(
        PADDLE_ELASTIC_TIMEOUT,
        "30",
        "Seconds that an elastic job waits for optional machines",
        &[Reader::Launcher],
    ),
    row(
        PADDLE_ELASTIC_TTL,
        "10",
        "Timeout in seconds after which an unresponsive machine is lost",
        &[Reader::Launcher],
    ),
    row(
        PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL,
        "",
        "Same as --elastic_level: 1 restart at the same size, 2 at any size within MIN:MAX",
        &[Reader::Launcher],
    ),
    row(NO_COLOR, "", "Any value disables colours on the terminal", &[Reader::Launcher]),
    row(PYTHON, "", "Interpreter for Python scripts; same as --python", &[Reader::Launcher]),
    // Settings of a running job.
    row(FLEET_JOB_ID, "", "Name of the job", &[Reader::RoleMaker]),
    row(FLEET_STORE, "", "HOST:PORT of the job's key-value store", &[Reader::RoleMaker]),
    secret(
        FLEET_TOKEN,
        "",
        "Secret of the job; every process that joins authenticates with it",
        &[Reader::RoleMaker, Reader::Launcher],
    ),
    row(
        FLEET_TOKEN_FILE,
        "",
        "File with the job's secret, for jobs on several machines; same as --token_file",
        &[Reader::Launcher],
    ),
    row(
        FLEET_RESTART_COUNT,
        "0",
        "Number of restarts of the job; if above 0, a script resumes from its checkpoint",
        &[Reader::RoleMaker],
    ),
    row(
        FLEET_LAUNCH,
        "",
        "Id of the launch, in every process, so that the launcher can end all of them",
        &[Reader::Launcher],
    ),
    row(FLEET_SHARED_MEMORY, "1", "0: ranks on one machine also use sockets", &[Reader::RoleMaker]),
    row(
        FLEET_MPI_LIBRARY,
        "",
        "The MPI library or its folder, for jobs started by mpirun; by default the system's",
        &[Reader::RoleMaker],
    ),
    row(
        FLEET_NCCL,
        "0",
        "1: collectives use NCCL, one GPU per worker (feature nccl)",
        &[Reader::RoleMaker],
    ),
    row(
        FLEET_NCCL_LIBRARY,
        "",
        "libnccl.so.2, or its folder; by default the system's",
        &[Reader::RoleMaker],
    ),
    row(
        OMPI_COMM_WORLD_SIZE,
        "",
        "Number of processes that Open MPI's mpirun started",
        &[Reader::RoleMaker],
    ),
    row(
        PMI_SIZE,
        "",
        "Number of processes that the mpirun of MPICH or Intel MPI started",
        &[Reader::RoleMaker],
    ),
    row(
        SLURM_NTASKS,
        "",
        "Number of processes that Slurm started; if above 1, Fleet refuses to train alone",
        &[Reader::RoleMaker],
    ),
    row(
        FLEET_PROGRESS,
        "",
        "File for a progress line that the launcher shows below the log",
        &[Reader::Script],
    ),
    row(
        FLEET_EXPENDABLE,
        "",
        "File that a parameter-server worker creates when the job can continue without it",
        &[Reader::Worker, Reader::Launcher],
    ),
    row(
        FLEET_REPORT,
        "",
        "File for a process's status reports: joined, serving, finished, failed and why",
        &[Reader::Worker, Reader::Server, Reader::Launcher],
    ),
    row(
        FLEET_SILENCE_TIMEOUT,
        "30",
        "Timeout in seconds after which an unresponsive process is lost (fleetrun \
         --silence_timeout)",
        &[Reader::RoleMaker],
    ),
    row(FLAGS_LAUNCH_BARRIER, "1", "Workers wait until the servers listen", &[Reader::Worker]),
    row(
        FLEET_SAVE_ROOT,
        "",
        "The only folder in which servers save and load; by default any; same as --save_root",
        &[Reader::Server],
    ),
    row(
        FLEET_GRPC_PORT,
        "",
        "Port of the servers' gRPC services: control, health, reflection (feature grpc); 0: any \
         free port",
        &[Reader::Server],
    ),
    row(
        FLEET_GRPC_CERT,
        "",
        "PEM file with the servers' gRPC certificate (features grpc and tls); with FLEET_GRPC_KEY",
        &[Reader::Server],
    ),
    row(FLEET_GRPC_KEY, "", "PEM file with the key of the certificate", &[Reader::Server]),
    row(PSERVER_DEBUG, "0", "Servers print a description of their tables", &[Reader::Server]),
    row(
        CPU_NUM,
        "",
        "Number of threads of a process; by default the number of cores",
        &[Reader::Worker],
    ),
    row(
        FLAGS_COMMUNICATOR_MAX_MERGE_VAR_NUM,
        "CPU_NUM, else 1",
        "Gradients merged into one push",
        &[Reader::Worker],
    ),
    row(
        FLAGS_COMMUNICATOR_SEND_QUEUE_SIZE,
        "CPU_NUM, else 1",
        "Length of the queue of gradients per variable",
        &[Reader::Worker],
    ),
    row(
        FLAGS_COMMUNICATOR_SEND_WAIT_TIMES,
        "5",
        "Polls of an empty queue before a smaller batch of gradients is sent",
        &[Reader::Worker],
    ),
    row(FLAGS_COMMUNICATOR_THREAD_POOL_SIZE, "5", "Number of sending threads", &[Reader::Worker]),
    row(
        FLAGS_COMMUNICATOR_INDEPENDENT_RECV_THREAD,
        "1",
        "A separate thread fetches parameters",
        &[Reader::Worker],
    ),
    row(
        FLAGS_COMMUNICATOR_MIN_SEND_GRAD_NUM_BEFORE_RECV,
        "CPU_NUM",
        "Gradients sent between two fetches of parameters",
        &[Reader::Worker],
    ),
    row(
        FLAGS_COMMUNICATOR_IS_SGD_OPTIMIZER,
        "1",
        "The optimizer is plain SGD, so that updates may be merged",
        &[Reader::Worker],
    ),
    row(
        FLAGS_RPC_SEND_THREAD_NUM,
        "",
        "Number of sending threads of a worker if FLAGS_communicator_thread_pool_size is absent",
        &[Reader::Worker],
    ),
    row(FLAGS_RPC_DEADLINE, "", "Timeout of a call to a server in milliseconds", &[Reader::Worker]),
    // Written by strategies for scripts that read them.
    row(
        FLAGS_FUSE_PARAMETER_MEMORY_SIZE,
        "",
        "Size of a bucket of gradients in MB",
        &[Reader::Script],
    ),
    row(FLAGS_FUSE_PARAMETER_GROUPS_SIZE, "", "Layers in a bucket of gradients", &[Reader::Script]),
    row(
        FLAGS_SYNC_NCCL_ALLREDUCE,
        "",
        "Communication waits for each all-reduce",
        &[Reader::Script],
    ),
    row(
        FLAGS_CUDNN_EXHAUSTIVE_SEARCH,
        "",
        "Value of the strategy field of that name",
        &[Reader::Script],
    ),
    row(
        FLAGS_CONV_WORKSPACE_SIZE_LIMIT,
        "",
        "Value of the strategy field of that name",
        &[Reader::Script],
    ),
    row(
        FLAGS_CUDNN_BATCHNORM_SPATIAL_PERSISTENT,
        "",
        "Value of the strategy field of that name",
        &[Reader::Script],
    ),
    // Documented settings for GPUs. NCCL itself reads those whose names start with `NCCL_`.
    row(
        FLAGS_ENABLE_PARALLEL_GRAPH,
        "",
        "One graph per device; no effect: a process has one device",
        &[Reader::Script],
    ),
    row(
        FLAGS_FRACTION_OF_GPU_MEMORY_TO_USE,
        "",
        "Fraction of GPU memory to reserve; no effect: memory is planned",
        &[Reader::Script],
    ),
    row(NCCL_SOCKET_IFNAME, "", "Network interface that NCCL uses", &[Reader::Script]),
    row(NCCL_P2P_DISABLE, "0", "1 disables peer-to-peer copies between GPUs", &[Reader::Script]),
    row(NCCL_IB_DISABLE, "0", "1 disables InfiniBand in NCCL", &[Reader::Script]),
    row(
        NCCL_IB_CUDA_SUPPORT,
        "",
        "InfiniBand accesses GPU memory directly (GPUDirect RDMA)",
        &[Reader::Script],
    ),
    row(NCCL_DEBUG, "", "Log level of NCCL: VERSION, WARN, INFO", &[Reader::Script]),
];

const fn row(
    name: &'static str,
    default: &'static str,
    meaning: &'static str,
    readers: &'static [Reader],
) -> Variable {
    Variable { name, default, meaning, readers, secret: false }
}

const fn secret(
    name: &'static str,
    default: &'static str,
    meaning: &'static str,
    readers: &'static [Reader],
) -> Variable {
    Variable { secret: true, ..row(name, default, meaning, readers) }
}
