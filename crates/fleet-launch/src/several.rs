//! A job on several machines, seen from one of them.
//!
//! Machines meet at a store that the first of them hosts at `--master`. With a list of hosts, which
//! gives everything but the ports, the first host hosts it. Alternatively they meet in an etcd
//! (`etcd/`), which none of them hosts.

use crate::attempts::Attempts;
use crate::cluster::{self, Cluster, Place, Run};
use crate::decisions::LeaderRules;
use crate::etcd::EtcdAccess;
use crate::events::{Death, End, Ended, Event, stop_signal};
use crate::link::{self, Hosting, Join, Link};
use crate::machine::Machine;
use crate::options::{Mode, Nodes, Options, Who, check_port};
use crate::ports::Ports;
use crate::protocol::{Listed, Node, NodeProcess, OverPlan, Plan, RunPlan};
use crate::random;
use crate::terms;
use fleet_base::{Error, Result};
use fleet_topology::{Endpoint, Env, Role, names};
use std::net::UdpSocket;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The machines of a job.
pub(crate) enum Members {
    Alone(Box<Cluster>),
    Several(Box<Meeting>),
}

/// Data with which a machine joins the others.
pub(crate) struct Meeting {
    master: Endpoint,
    hosting: Hosting,
    /// The etcd at the master's address.
    etcd: Option<EtcdAccess>,
    nodes: Nodes,
    node: Node,
    /// The cluster, if a list of hosts describes it.
    known: Option<Cluster>,
}

/// Returns the machines of the job, as far as flags and environment describe them.
pub(crate) fn members(
    options: &Options,
    env: &Env,
    machine: &Machine,
    ports: &mut dyn Ports,
) -> Result<Members> {
    let nodes = options.nodes.unwrap_or(Nodes { min: 1, max: 1 });
    let listed = options.ips.len() > 1
        || [&options.ps.servers, &options.ps.workers]
            .into_iter()
            .any(|who| matches!(who, Who::Listed(_)));
    if let Some(etcd) = &options.etcd {
        if listed {
            return Err(Error::invalid("--servers and --workers conflict with --elastic_server")
                .expected("--server_num and --worker_num of this machine"));
        }
        let meeting = at_master(options, env, machine, ports, &etcd.endpoint, nodes)?;
        let meeting = Meeting { hosting: Hosting::Never, etcd: Some(etcd.clone()), ..meeting };
        return Ok(Members::Several(Box::new(meeting)));
    }
    match &options.master {
        Some(master) if nodes.max > 1 && !listed => {
            let meeting = at_master(options, env, machine, ports, master, nodes)?;
            Ok(Members::Several(Box::new(meeting)))
        }
        _ => {
            let cluster = Cluster::described(options, env, machine, ports)?;
            if cluster.is_alone() {
                return Ok(Members::Alone(Box::new(cluster)));
            }
            Ok(Members::Several(Box::new(listed_meeting(options, cluster)?)))
        }
    }
}

/// Returns the meeting for a list of hosts: only the ports are unknown, and the machines exchange
/// them through the store.
fn listed_meeting(options: &Options, cluster: Cluster) -> Result<Meeting> {
    let of = |node: usize| cluster.places().filter(move |place| place.node == node);
    let first = of(0).max_by_key(|place| place.endpoint.port);
    let first = first.ok_or_else(|| Error::internal("the first host has no process"))?;
    let master = match &options.master {
        Some(master) => master.clone(),
        None if cluster.has_fixed_ports => {
            let port = first.endpoint.port.checked_add(1).ok_or_else(|| {
                Error::exhausted("there is no port above those of the processes")
                    .help("say with --master HOST:PORT where the machines meet")
            })?;
            Endpoint::new(&first.endpoint.host, port)
        }
        None => Endpoint::new(&first.endpoint.host, MEETING_PORT),
    };
    if cluster.node > 0 {
        check_port(options.master.as_ref())?;
    }
    let count = cluster.node_count;
    let here = |place: &&Place| place.node == cluster.node;
    let workers = cluster.workers.iter().enumerate();
    let nodes = Nodes { min: count, max: count };
    let node = Node {
        host: of(cluster.node).next().map(|it| it.endpoint.host.clone()).unwrap_or_default(),
        rank: Some(cluster.node),
        gloo: cluster.gloo_http.as_ref().map_or(0, |endpoint| endpoint.port),
        workers: cluster.workers.iter().filter(here).map(process).collect(),
        servers: cluster.servers.iter().filter(here).map(process).collect(),
        listed: Some(Listed {
            ports: of(cluster.node).map(|place| place.endpoint.port).collect(),
            ranks: workers.filter(|(_, it)| here(it)).map(|(rank, _)| rank).collect(),
        }),
        terms: terms::of_options(options, nodes),
    };
    Ok(Meeting {
        master,
        hosting: if cluster.node == 0 { Hosting::Always } else { Hosting::Never },
        etcd: None,
        nodes,
        node,
        known: Some(cluster),
    })
}

fn process(place: &Place) -> NodeProcess {
    NodeProcess { port: place.endpoint.port, devices: place.devices.clone() }
}

/// Returns the meeting at a given address: each machine contributes its processes, and the leader
/// assigns numbers.
fn at_master(
    options: &Options,
    env: &Env,
    machine: &Machine,
    ports: &mut dyn Ports,
    master: &Endpoint,
    nodes: Nodes,
) -> Result<Meeting> {
    if options.mode == Mode::PsHeter || !options.ps.coordinators.is_empty() {
        return Err(Error::unsupported(
            "heterogeneous workers and coordinators do not meet at --master",
        )
        .help(
            "list all addresses: --servers, --workers, --heter_workers, the same on every machine",
        ));
    }
    let host = own_host(options, env, machine, master);
    let mut process = |devices: Vec<String>| -> Result<NodeProcess> {
        Ok(NodeProcess { port: ports.next(&host)?, devices })
    };
    let (servers, workers) = match options.mode {
        Mode::Collective => {
            let devices = cluster::local_devices(options, env, machine)?;
            (Vec::new(), devices.into_iter().map(&mut process).collect::<Result<_>>()?)
        }
        _ => {
            let gpus = cluster::gpu_list(options, env, machine)?;
            let device = |index: usize| match gpus.is_empty() {
                true => Vec::new(),
                false => vec![gpus[index % gpus.len()].clone()],
            };
            let servers: Vec<NodeProcess> = (0..options.ps.servers.len())
                .map(|_| process(Vec::new()))
                .collect::<Result<_>>()?;
            let workers: Vec<NodeProcess> = (0..options.ps.workers.len())
                .map(|at| process(device(at)))
                .collect::<Result<_>>()?;
            if servers.is_empty() && workers.is_empty() {
                return Err(Error::invalid("this machine brings neither servers nor workers")
                    .expected("--server_num N, --worker_num N, or both"));
            }
            (servers, workers)
        }
    };
    let gloo = match options.http_port {
        Some(port) => port,
        None => ports.next(&host)?,
    };
    let hosting = match (options.node_rank, machine.is_here(&master.host) || host == master.host) {
        (Some(0), _) => Hosting::Always,
        (None, true) => Hosting::IfFirst,
        _ => Hosting::Never,
    };
    Ok(Meeting {
        master: master.clone(),
        hosting,
        etcd: None,
        nodes,
        node: Node {
            host,
            rank: options.node_rank,
            gloo,
            workers,
            servers,
            listed: None,
            terms: terms::of_options(options, nodes),
        },
        known: None,
    })
}

/// Returns the address by which the other machines reach this one: that of the interface that
/// routes to the master.
fn own_host(options: &Options, env: &Env, machine: &Machine, master: &Endpoint) -> String {
    if let Some(host) = &options.host {
        return host.clone();
    }
    if let Some(host) = env.text(names::POD_IP) {
        return host.to_string();
    }
    let towards = || -> std::io::Result<String> {
        // Connecting a datagram socket sends nothing; it only selects the route.
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect((master.host.as_str(), master.port.max(1)))?;
        Ok(socket.local_addr()?.ip().to_string())
    };
    towards().unwrap_or_else(|_| machine.outward())
}

/// Next action of this machine.
enum Next {
    Run(RunPlan),
    Over(OverPlan),
    Interrupted(i32),
    Broken(Error),
}

impl Meeting {
    fn join(&self, id: &str, run: &Run, rules: LeaderRules) -> Result<Join> {
        Ok(Join {
            master: self.master.clone(),
            hosting: self.hosting,
            etcd: self.etcd.clone(),
            id: id.to_string(),
            job_id: run.job_id.clone(),
            node: self.node.clone(),
            token: run.token.clone().ok_or_else(|| Error::internal("no token"))?,
            rules,
        })
    }
}

impl Attempts<'_> {
    /// Follows the leader's plan until the job is over.
    pub fn several(&mut self, meeting: Meeting, sender: Sender<Event>) -> Result<u8> {
        let id = random::hex(8)?;
        let rules = LeaderRules {
            hosts: meeting.known.as_ref().map_or(Vec::new(), Cluster::hosts),
            hands_over: meeting.etcd.is_some(),
            ..self.leader_rules(meeting.nodes)?
        };
        let link = Link::join(meeting.join(&id, &self.run, rules)?, sender)?;
        // Becomes `PADDLE_MASTER`, where scripts find each other. With etcd that is the store of
        // the job.
        self.run.master = meeting.etcd.is_none().then(|| link.master().clone());
        let (mut done, mut is_failure_reported) = (None, false);
        loop {
            match self.next(&link, done, (&id, &meeting)) {
                Next::Run(RunPlan { generation, nodes, store, .. }) => {
                    done = Some(generation);
                    self.run.store = Some(store);
                    self.run.restarts = u32::try_from(generation).unwrap_or(u32::MAX);
                    let cluster = match &meeting.known {
                        Some(cluster) => link::with_ports(cluster.clone(), &nodes),
                        None => link::cluster(&nodes, &id, &self.job.options),
                    };
                    let end = self.generation(cluster, &meeting.node.host, &link, generation);
                    link.report(generation, &end);
                    is_failure_reported = match &end {
                        // A failure that follows from another worker's was shown as a warning only.
                        End::Failed(death) => death.follows.is_none(),
                        End::Finished(lost) => !lost.is_empty(),
                        End::Interrupted(_) | End::Ordered(_) => false,
                    };
                    if let End::Interrupted(signal) = end {
                        link.leave(false);
                        return Ok(self.interrupted(signal));
                    }
                }
                Next::Over(OverPlan { code, reason, culprit, .. }) => {
                    link.leave(true);
                    if code == 0 {
                        return Ok(self.done(&[]));
                    }
                    // The reason may be new here: a worker that exited with code 0 counts as failed
                    // only if others needed it.
                    match culprit.as_deref() == Some(&*id) {
                        false => self.resources.console.error(&reason),
                        true if is_failure_reported => {}
                        true => {
                            self.resources.console.error(reason.lines().next().unwrap_or_default())
                        }
                    }
                    return Ok(code);
                }
                Next::Interrupted(signal) => {
                    link.leave(false);
                    return Ok(self.interrupted(signal));
                }
                Next::Broken(error) => {
                    link.leave(true);
                    return Err(error);
                }
            }
        }
    }

    /// Runs the processes of one generation. Errors become an [`End`], since the leader must learn
    /// of them.
    fn generation(
        &mut self,
        cluster: Result<Cluster>,
        host: &str,
        link: &Link,
        generation: u64,
    ) -> End {
        let tell = |ended: &Ended| link.notify_ended(generation, ended);
        let end = cluster.and_then(|cluster| {
            if generation > 0 {
                let line = format!("start {generation}: {}", shown(&cluster));
                self.resources.console.info(&line);
            }
            let end = self.one(&cluster, Some((link, generation)), &tell)?;
            if let End::Failed(death) = &end
                && death.follows.is_none()
            {
                self.abort_line(death, &cluster);
            }
            Ok(end)
        });
        let end = end.unwrap_or_else(|error| {
            self.resources.console.error(&error.to_string());
            let report = format!("machine {host} could not start: {error}");
            End::Failed(Death::new(Role::Worker, 0, report, 1))
        });
        if matches!(end, End::Finished(_)) {
            self.resources
                .console
                .debug("the processes of this machine are done; waiting for the others");
        }
        end
    }

    /// Waits until the plan has a new generation that includes this machine, or the job ends.
    fn next(&mut self, link: &Link, done: Option<u64>, (id, own): (&str, &Meeting)) -> Next {
        let mut is_full_reported = false;
        loop {
            for line in link.take_messages() {
                self.resources.console.info(&line);
            }
            match link.plan() {
                Some(Plan::Over(plan)) => return Next::Over(plan),
                Some(Plan::Run(plan)) if done.is_none_or(|done| plan.generation > done) => {
                    if plan.nodes.iter().any(|node| node.id == id) {
                        return Next::Run(plan);
                    }
                    let first = plan.nodes.first();
                    let other = first.and_then(|it| terms::difference(&it.node, &own.node));
                    if let Some(error) = other {
                        return Next::Broken(error);
                    }
                    if !std::mem::replace(&mut is_full_reported, true) {
                        let line = "the job has its maximum of machines; waiting";
                        self.resources.console.info(line);
                    }
                }
                _ => {}
            }
            if let Some(error) = link.broken() {
                return Next::Broken(error);
            }
            if let Some(signal) = stop_signal(&self.resources.events, TICK) {
                return Next::Interrupted(signal);
            }
        }
    }

    fn leader_rules(&self, nodes: Nodes) -> Result<LeaderRules> {
        let options = &self.job.options;
        let seconds = self.job.env.number::<u64>(names::PADDLE_ELASTIC_TTL)?;
        Ok(LeaderRules {
            min: nodes.min,
            max: nodes.max,
            level: options.elastic_level,
            max_restart: options.job_restarts(),
            silence: seconds.map_or(SILENCE, Duration::from_secs).max(SILENCE_MIN),
            timeouts: options.timeouts,
            sort_ip: options.sort_ip,
            hosts: Vec::new(),
            hands_over: false,
        })
    }
}

/// Describes a generation: `3 workers on 2 machines, this one is number 0`.
fn shown(cluster: &Cluster) -> String {
    format!(
        "{} on {} machine{}, this one is number {}",
        crate::display::counted(Role::Worker, cluster.workers.len()),
        cluster.node_count,
        if cluster.node_count == 1 { "" } else { "s" },
        cluster.node
    )
}

/// Default port at which listed machines meet; the same as torchrun's.
const MEETING_PORT: u16 = 29400;
const TICK: Duration = Duration::from_millis(50);
/// Time without a heartbeat after which a machine is lost. `PADDLE_ELASTIC_TTL` overrides it.
const SILENCE: Duration = Duration::from_secs(10);
/// Lower limit on that time: it must span two heartbeats.
const SILENCE_MIN: Duration = Duration::from_secs(2);
