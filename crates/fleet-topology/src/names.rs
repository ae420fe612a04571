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
    Nobody,
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
    row(PADDLE_TRAINER_ID, "", "The worker's number, from 0", &[Reader::RoleMaker]),
    row(PADDLE_TRAINERS_NUM, "", "How many workers the job has", &[Reader::RoleMaker]),
    row(
        PADDLE_TRAINER_ENDPOINTS,
        "",
        "HOST:PORT of every worker by rank, separated by commas",
        &[Reader::RoleMaker],
    ),
    row(PADDLE_CURRENT_ENDPOINT, "", "HOST:PORT of this worker", &[Reader::RoleMaker]),
    row(
        PADDLE_RANK_IN_NODE,
        "",
        "The worker's number among those of its host",
        &[Reader::RoleMaker],
    ),
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
        "What carries collectives between workers: gloo (CPU) or nccl (GPU)",
        &[Reader::Nobody],
    ),
    row(
        FLAGS_SELECTED_GPUS,
        "",
        "The GPU of this process, counted within CUDA_VISIBLE_DEVICES",
        &[Reader::RoleMaker],
    ),
    row(
        FLAGS_SELECTED_XPUS,
        "",
        "As FLAGS_selected_gpus for XPUs; written for scripts, no device of ours",
        &[Reader::Script],
    ),
    row(CUDA_VISIBLE_DEVICES, "all", "GPUs that a process may see", &[Reader::Launcher]),
    row(XPU_VISIBLE_DEVICES, "", "Written for scripts, no device of ours", &[Reader::Script]),
    // Topology of a parameter-server job.
    row(TRAINING_ROLE, "", "TRAINER, PSERVER, HETER_TRAINER or COORDINATOR", &[Reader::RoleMaker]),
    row(
        PADDLE_PSERVERS_IP_PORT_LIST,
        "",
        "HOST:PORT of every server, separated by commas; absent: the process is alone",
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
        "HOST:PORT of the workers of the stage before",
        &[Reader::RoleMaker],
    ),
    row(
        PADDLE_STAGE_TRAINERS_NUM,
        "",
        "How many workers each stage has: [1, 2]",
        &[Reader::RoleMaker],
    ),
    row(STAGE_ID, "", "The stage of this process, from 1 (the workers)", &[Reader::RoleMaker]),
    row(STAGE_NUM, "", "How many stages the job has", &[Reader::RoleMaker]),
    row(
        HETER_DEVICE_TYPE,
        "",
        "The kind of device that the stage runs on: cpu, gpu",
        &[Reader::RoleMaker],
    ),
    row(
        PADDLE_WITH_GLOO,
        "0",
        "Barrier service beside training: 0 nobody, 1 workers, 2 workers and servers",
        &[Reader::RoleMaker, Reader::Launcher],
    ),
    row(
        PADDLE_GLOO_RENDEZVOUS,
        "",
        "Where its members meet: 1 HDFS, 2 files, 3 HTTP",
        &[Reader::RoleMaker],
    ),
    row(PADDLE_GLOO_FS_NAME, "", "HDFS name for meeting way 1", &[Reader::RoleMaker]),
    secret(
        PADDLE_GLOO_FS_UGI,
        "",
        "HDFS user and password for meeting way 1",
        &[Reader::RoleMaker],
    ),
    row(PADDLE_GLOO_FS_PATH, "", "Folder for meeting ways 1 and 2", &[Reader::RoleMaker]),
    row(PADDLE_GLOO_HTTP_ENDPOINT, "", "HOST:PORT for meeting way 3", &[Reader::RoleMaker]),
    row(SYS_JOB_ID, "", "Keeps apart the jobs that meet in one place", &[Reader::RoleMaker]),
    // Settings that launchers and clusters pass to the launcher.
    row(
        PADDLE_TRAINERS,
        "",
        "Hosts of a cluster's job, separated by commas; counts as --ips",
        &[Reader::Launcher],
    ),
    row(TRAINER_PORTS_NUM, "", "How many ports a cluster's job was given", &[Reader::Launcher]),
    row(
        DISTRIBUTED_TRAINER_ENDPOINTS,
        "",
        "Endpoints given by a cluster; they win over generated ones",
        &[Reader::Launcher],
    ),
    row(
        FLAGS_START_PORT,
        "",
        "First of the fixed ports; absent: free ones from the system",
        &[Reader::Launcher],
    ),
    row(
        PADDLE_MASTER,
        "",
        "HOST:PORT where the machines of a job meet; counts as --master",
        &[Reader::Launcher, Reader::Script],
    ),
    row(
        PADDLE_NNODES,
        "",
        "How many machines, N or MIN:MAX; counts as --nnodes",
        &[Reader::Launcher, Reader::Script],
    ),
    row(PADDLE_GLOBAL_SIZE, "", "How many processes the job has", &[Reader::Script]),
    row(PADDLE_LOCAL_SIZE, "", "How many processes this machine has", &[Reader::Script]),
    row(PADDLE_GLOBAL_RANK, "", "The process's number in the job", &[Reader::Script]),
    row(PADDLE_LOCAL_RANK, "", "The process's number on this machine", &[Reader::Script]),
    row(RANK, "", "PADDLE_TRAINER_ID, for scripts of torch", &[Reader::Script]),
    row(
        WORLD_SIZE,
        "",
        "PADDLE_TRAINERS_NUM, for scripts of torch; of torchrun: above 1 no process trains alone",
        &[Reader::Script, Reader::RoleMaker],
    ),
    row(LOCAL_RANK, "", "PADDLE_LOCAL_RANK, for scripts of torch", &[Reader::Script]),
    row(LOCAL_WORLD_SIZE, "", "PADDLE_LOCAL_SIZE, for scripts of torch", &[Reader::Script]),
    row(GROUP_RANK, "", "The number of this machine, for scripts of torch", &[Reader::Script]),
    row(MASTER_ADDR, "", "The host of the first worker, for scripts of torch", &[Reader::Script]),
    row(
        MASTER_PORT,
        "",
        "A port that rank 0 may listen on, for scripts of torch",
        &[Reader::Script],
    ),
    row(PADDLE_LOG_DIR, "", "Where the launcher writes logs", &[Reader::Script]),
    row(PADDLE_ROLE, "", "TRAINING_ROLE once more, for newer scripts", &[Reader::Script]),
    row(POD_NAME, "", "A name for this machine within the job", &[Reader::Script]),
    row(PADDLE_ELASTIC_JOB_ID, "", "Counts as --job_id", &[Reader::Launcher]),
    row(PADDLE_ELASTIC_NP, "", "Counts as --nnodes: N or MIN:MAX", &[Reader::Launcher]),
    row(
        PADDLE_ELASTIC_SERVER,
        "",
        "Counts as --elastic_server: an etcd where machines meet",
        &[Reader::Launcher],
    ),
    row(
        PADDLE_ELASTIC_TIMEOUT,
        "30",
        "Seconds that an elastic job waits for more machines than it needs",
        &[Reader::Launcher],
    ),
    row(
        PADDLE_ELASTIC_TTL,
        "10",
        "Seconds without a sign of life after which a machine is lost",
        &[Reader::Launcher],
    ),
    row(
        PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL,
        "",
        "Counts as --elastic_level: 1 same size again, 2 any size within MIN:MAX",
        &[Reader::Launcher],
    ),
    row(NO_COLOR, "", "Set to anything: no colours on the terminal", &[Reader::Launcher]),
    row(PYTHON, "", "The interpreter for Python scripts; counts as --python", &[Reader::Launcher]),
    // Settings of a running job.
    row(FLEET_JOB_ID, "", "The job's name", &[Reader::RoleMaker]),
    row(FLEET_STORE, "", "HOST:PORT of the job's key-value store", &[Reader::RoleMaker]),
    secret(
        FLEET_TOKEN,
        "",
        "The job's secret, shown by every process that joins",
        &[Reader::RoleMaker, Reader::Launcher],
    ),
    row(
        FLEET_TOKEN_FILE,
        "",
        "A file with the job's secret, for jobs on several machines; counts as --token_file",
        &[Reader::Launcher],
    ),
    row(
        FLEET_RESTART_COUNT,
        "0",
        "How often the job was started again; above 0 a script resumes from its checkpoint",
        &[Reader::RoleMaker],
    ),
    row(
        FLEET_LAUNCH,
        "",
        "Marks every process of one launch, so that none is left behind",
        &[Reader::Launcher],
    ),
    row(
        FLEET_SHARED_MEMORY,
        "1",
        "0: ranks of one machine talk over sockets as well",
        &[Reader::RoleMaker],
    ),
    row(
        FLEET_MPI_LIBRARY,
        "",
        "The library of MPI, or its folder, in jobs of mpirun; by default the system's",
        &[Reader::RoleMaker],
    ),
    row(
        FLEET_NCCL,
        "0",
        "1: collectives between workers go over NCCL, each with a GPU (feature nccl)",
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
        "How many processes Open MPI's mpirun has started",
        &[Reader::RoleMaker],
    ),
    row(
        PMI_SIZE,
        "",
        "How many processes the mpirun of MPICH or Intel MPI has started",
        &[Reader::RoleMaker],
    ),
    row(
        SLURM_NTASKS,
        "",
        "How many processes Slurm has started: above 1 no process trains alone",
        &[Reader::RoleMaker],
    ),
    row(
        FLEET_PROGRESS,
        "",
        "A file for one line about how far the job is, which the launcher shows below the log",
        &[Reader::Script],
    ),
    row(
        FLEET_EXPENDABLE,
        "",
        "A file that a worker of parameter servers makes when the others can go on without it",
        &[Reader::Worker, Reader::Launcher],
    ),
    row(
        FLEET_REPORT,
        "",
        "A file for a process's reports: it takes part or serves, has finished, has failed and why",
        &[Reader::Worker, Reader::Server, Reader::Launcher],
    ),
    row(
        FLEET_SILENCE_TIMEOUT,
        "30",
        "Seconds without a sign of life after which a process is lost (fleetrun --silence_timeout)",
        &[Reader::RoleMaker],
    ),
    row(FLAGS_LAUNCH_BARRIER, "1", "Workers wait until the servers listen", &[Reader::Worker]),
    row(
        FLEET_SAVE_ROOT,
        "",
        "Servers save to and load from folders in this one alone; by default any; as --save_root",
        &[Reader::Server],
    ),
    row(
        FLEET_GRPC_PORT,
        "",
        "Servers answer control, health and reflection over gRPC there (feature grpc); 0: any free port",
        &[Reader::Server],
    ),
    row(
        FLEET_GRPC_CERT,
        "",
        "A PEM file with the certificate that servers show over gRPC (features grpc and tls); with FLEET_GRPC_KEY",
        &[Reader::Server],
    ),
    row(FLEET_GRPC_KEY, "", "A PEM file with the certificate's key", &[Reader::Server]),
    row(PSERVER_DEBUG, "0", "Servers print what their tables are", &[Reader::Server]),
    row(
        CPU_NUM,
        "",
        "Threads of a process; by default as many as the machine has cores",
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
        "Empty looks into the queue before what is there is sent",
        &[Reader::Worker],
    ),
    row(FLAGS_COMMUNICATOR_THREAD_POOL_SIZE, "5", "Threads that send", &[Reader::Worker]),
    row(
        FLAGS_COMMUNICATOR_INDEPENDENT_RECV_THREAD,
        "1",
        "Parameters are fetched by a thread of their own",
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
        "Threads of a worker that send, where FLAGS_communicator_thread_pool_size does not say",
        &[Reader::Worker],
    ),
    row(
        FLAGS_RPC_DEADLINE,
        "",
        "Milliseconds after which a call to a server has failed",
        &[Reader::Worker],
    ),
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
    row(FLAGS_CUDNN_EXHAUSTIVE_SEARCH, "", "As the strategy of that name", &[Reader::Script]),
    row(FLAGS_CONV_WORKSPACE_SIZE_LIMIT, "", "As the strategy of that name", &[Reader::Script]),
    row(
        FLAGS_CUDNN_BATCHNORM_SPATIAL_PERSISTENT,
        "",
        "As the strategy of that name",
        &[Reader::Script],
    ),
    // Documented settings for GPUs. NCCL itself reads those whose names start with `NCCL_`.
    row(
        FLAGS_ENABLE_PARALLEL_GRAPH,
        "",
        "One graph a device; without effect, since a process has one device",
        &[Reader::Script],
    ),
    row(
        FLAGS_FRACTION_OF_GPU_MEMORY_TO_USE,
        "",
        "Share of GPU memory taken at the start; without effect, since memory is planned",
        &[Reader::Script],
    ),
    row(NCCL_SOCKET_IFNAME, "", "Network interface that NCCL uses", &[Reader::Script]),
    row(NCCL_P2P_DISABLE, "0", "GPUs of a machine do not write to each other", &[Reader::Script]),
    row(NCCL_IB_DISABLE, "0", "NCCL leaves InfiniBand alone", &[Reader::Script]),
    row(NCCL_IB_CUDA_SUPPORT, "", "InfiniBand reads GPU memory itself", &[Reader::Script]),
    row(NCCL_DEBUG, "", "What NCCL writes to the log: VERSION, WARN, INFO", &[Reader::Script]),
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
