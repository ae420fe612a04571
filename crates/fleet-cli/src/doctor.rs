//! `fleet doctor`: checks that the machines of a job find and reach each other, and measures how
//! fast.
//!
//! The same command runs on every machine, as with the launcher. The first host of the list hosts
//! the rendezvous and prints the report. The other hosts print only their own settings.

use clap::Args;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, text};
use fleet_net::{
    Fabric, Limits, Log, Store, StoreClient, StoreServer, TcpFabric, TcpOptions, Token, Vigilance,
    host, probe,
};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// Default port of the rendezvous.
const PORT: u16 = 6169;
/// Maximum number of hosts; larger fabrics have their own tools.
const HOSTS_MAX: usize = 256;
/// Clock offset in seconds above which logs are hard to compare.
const CLOCK_OFFSET_MAX: f64 = 0.1;
/// Shared memory that data loaders and the collectives of one machine need.
const SHARED_MEMORY_MIN: u64 = 1 << 30;

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Machines, separated by commas: names or addresses, in the same order everywhere
    #[arg(long, value_delimiter = ',', required = true)]
    hosts: Vec<String>,
    /// Port of the rendezvous on the first machine; with 0 the system chooses one
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Index of this machine in --hosts, from 0 [default: found from the names]
    #[arg(long)]
    rank: Option<usize>,
    /// Interface to use (eth0, or an address) [default: the one that reaches the first machine]
    #[arg(long)]
    interface: Option<String>,
    /// Seconds to wait for the other machines
    #[arg(long, default_value_t = 60)]
    wait: u64,
    /// File with a shared secret, the same on all machines; needed if untrusted hosts can reach
    /// the ports
    #[arg(long)]
    token_file: Option<PathBuf>,
}

pub(crate) fn run(args: &DoctorArgs, out: &mut Output) -> Result<(), ExitReason> {
    if args.hosts.len() > HOSTS_MAX {
        let error = Error::invalid("too many hosts").expected(format!("up to {HOSTS_MAX}"));
        return Err(error.got(args.hosts.len()).into());
    }
    print_local(out)?;
    let addresses = resolve_hosts(args, out)?;
    let rank = own_rank(args, &addresses)?;
    out.line(format!(
        "this machine      number {rank} of {}, {}",
        args.hosts.len(),
        args.hosts[rank]
    ))?;
    let limits = Limits::within(Duration::from_secs(args.wait));
    let token = match &args.token_file {
        Some(path) => Token::read(path)?,
        // Separates runs on other hosts. It is not secret, and no secret data is exchanged.
        None => Token::from_text(&format!("fleet doctor {}", args.hosts.join(",")))?,
    };
    let server = match rank {
        0 => Some(StoreServer::bind(
            (addresses[0].ip(), args.port),
            &token,
            Vigilance::default(),
            Log::stderr(),
        )?),
        _ => None,
    };
    let store_address = server.as_ref().map_or(addresses[0], StoreServer::address);
    if server.is_some() {
        let others = args.hosts.len() - 1;
        out.line(format!("rendezvous        at {store_address}, waiting for {others} others"))?;
    }
    let store = StoreClient::connect(store_address, &token, &limits).map_err(|error| {
        error.help(format!(
            "check that the same command runs on {}, and that no firewall blocks port {}",
            args.hosts[0],
            store_address.port()
        ))
    })?;
    let mut options = TcpOptions::new("doctor", rank, args.hosts.len()).store(store_address);
    options.interface.clone_from(&args.interface);
    let fabric = TcpFabric::start(&store, &token, options, &limits).map_err(|error| {
        error.help("run the same command on the missing machines, or remove them from --hosts")
    })?;
    out.line(format!("listening on      {}", fabric.address()))?;
    let links = measure(&fabric, &store, &limits)?;
    if rank == 0 {
        report(args, &fabric, &links, out)?;
    } else {
        out.line(format!("the report is printed on {}", args.hosts[0]))?;
    }
    // The store must outlive all clients: wait until every rank has left.
    store.set(&format!("left/{rank}"), b"", &limits)?;
    if server.is_some() {
        wait_for(&store, (0..args.hosts.len()).map(|rank| format!("left/{rank}")), &limits)?;
    }
    Ok(())
}

/// Prints this machine's own settings.
fn print_local(out: &mut Output) -> Result<(), ExitReason> {
    out.line(format!("host              {}", host::name()))?;
    for (name, ip) in host::interfaces()? {
        out.line(format!("interface         {name} {ip}"))?;
    }
    match host::shared_memory() {
        Some((free, size)) => {
            let warning = match free < SHARED_MEMORY_MIN {
                true => "  <- low: mount a larger /dev/shm (docker run --shm-size=8g)",
                false => "",
            };
            let (free, size) = (text::bytes(free), text::bytes(size));
            out.line(format!("shared memory     {free} free of {size}{warning}"))?;
        }
        None => out.line("shared memory     no /dev/shm on this system")?,
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    out.line(format!("cores             {cores}"))
}

/// Resolves and prints every host's address; hosts without one are an error.
fn resolve_hosts(args: &DoctorArgs, out: &mut Output) -> Result<Vec<SocketAddr>, ExitReason> {
    let mut unknown = Vec::new();
    let mut addresses = Vec::new();
    for name in &args.hosts {
        match (name.as_str(), args.port).to_socket_addrs().map(|found| found.collect::<Vec<_>>()) {
            Ok(mut found) if !found.is_empty() => {
                found.sort_by_key(SocketAddr::is_ipv6);
                out.line(format!("name              {name} is {}", found[0].ip()))?;
                addresses.push(found[0]);
            }
            Ok(_) => unknown.push(format!("{name} (no address)")),
            Err(error) => unknown.push(format!("{name} ({error})")),
        }
    }
    match unknown.as_slice() {
        [] => Ok(addresses),
        unknown => Err(Error::invalid(format!("unknown hosts: {}", unknown.join(", ")))
            .help("check /etc/hosts and the name servers, or use addresses")
            .into()),
    }
}

/// Returns the index of this machine among the hosts.
fn own_rank(args: &DoctorArgs, addresses: &[SocketAddr]) -> Result<usize> {
    if let Some(rank) = args.rank {
        return match rank < addresses.len() {
            true => Ok(rank),
            false => Err(Error::invalid("--rank is not one of the hosts")
                .expected(format!("0 to {}", addresses.len() - 1))
                .got(rank)),
        };
    }
    let own = host::interfaces()?;
    let is_own = |address: &SocketAddr| own.iter().any(|(_, ip)| *ip == address.ip());
    let mine: Vec<usize> = (0..addresses.len()).filter(|at| is_own(&addresses[*at])).collect();
    match mine.as_slice() {
        [rank] => Ok(*rank),
        [] => Err(Error::invalid("this machine is not one of the hosts")
            .expected(args.hosts.join(", "))
            .got(host::name())
            .help("set --rank if its address is hidden (NAT, containers)")),
        _ => Err(Error::invalid("several of the hosts are this machine").help("set --rank")),
    }
}

/// Measures one pair after another, so that pairs do not disturb each other.
fn measure(
    fabric: &TcpFabric,
    store: &StoreClient,
    limits: &Limits,
) -> Result<Vec<(usize, usize, probe::Link)>> {
    let (rank, size) = (fabric.rank(), fabric.size());
    let mesh = fabric.open("doctor", &(0..size).collect::<Vec<_>>())?;
    let mut links = Vec::new();
    for first in 0..size {
        for second in first + 1..size {
            let key = format!("measured/{first}-{second}");
            if rank == first || rank == second {
                let peer = first + second - rank;
                let link = probe::link(&*mesh, peer, limits)?;
                links.push((first, second, link));
                store.set(&key, &encode(&link), limits)?;
            } else {
                let value = wait_for(store, [key].into_iter(), limits)?;
                links.push((first, second, decode(&value[0])?));
            }
        }
    }
    Ok(links)
}

fn encode(link: &probe::Link) -> Vec<u8> {
    let latency = link.latency.as_secs_f64();
    format!("{latency} {} {}", link.bandwidth, link.clock_offset).into_bytes()
}

fn decode(bytes: &[u8]) -> Result<probe::Link> {
    let text = String::from_utf8_lossy(bytes);
    let numbers: Vec<f64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [latency, bandwidth, clock_offset] if latency >= 0.0 && latency.is_finite() => {
            let latency = Duration::try_from_secs_f64(latency).unwrap_or(Duration::MAX);
            Ok(probe::Link { latency, bandwidth, clock_offset })
        }
        _ => Err(Error::unavailable("invalid measurement from a peer").got(text)),
    }
}

fn wait_for(
    store: &StoreClient,
    keys: impl Iterator<Item = String>,
    limits: &Limits,
) -> Result<Vec<Vec<u8>>> {
    let keys: Vec<String> = keys.collect();
    store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), limits)
}

fn report(
    args: &DoctorArgs,
    fabric: &TcpFabric,
    links: &[(usize, usize, probe::Link)],
    out: &mut Output,
) -> Result<(), ExitReason> {
    out.line("")?;
    let width = args.hosts.iter().map(String::len).max().unwrap_or(0).max(4);
    out.line(format!(
        "{:width$}  {:width$}  {:>10}  {:>10}  {:>12}",
        "from", "to", "latency", "bandwidth", "clock"
    ))?;
    for (first, second, link) in links {
        let latency = format!("{:.1} us", link.latency.as_secs_f64() * 1e6);
        let bandwidth = format!("{:.2} GB/s", link.bandwidth / 1e9);
        let clock = format!("{:+.3} ms", link.clock_offset * 1e3);
        let warning = match link.clock_offset.abs() > CLOCK_OFFSET_MAX {
            true => "  <- synchronize the clocks (NTP)",
            false => "",
        };
        let same = match fabric.member(*first).host_id == fabric.member(*second).host_id {
            true => "  (one machine: uses shared memory)",
            false => "",
        };
        let (from, to) = (&args.hosts[*first], &args.hosts[*second]);
        out.line(format!(
            "{from:width$}  {to:width$}  {latency:>10}  {bandwidth:>10}  {clock:>12}{warning}{same}"
        ))?;
    }
    out.line(match links.is_empty() {
        true => "one host: nothing to measure",
        false => "all machines reach each other",
    })
}
