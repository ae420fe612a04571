//! One checkpoint of one or many ranks.
//!
//! ```text
//! step-000000000400/              state that all ranks have in common, written by rank 0
//!   rank-00000/  rank-00001/ ...  each rank's own state; absent in a job of one rank
//! ```
//!
//! Every part is a checkpoint by itself. Each rank writes its part without waiting for the others.
//! The whole checkpoint is complete when all parts exist and belong to the same run of the job. If
//! another number of ranks reads it, the ranks' own state is redistributed: see [`Spread`]. State
//! that one rank owns is in its part alone. A rank reads the variables of its program, from
//! whichever part has them.
//!
//! Ranks that share layers have parts of variables. Each rank's entry `fleet.divided` says which
//! parts its tensors are. A rank reads what its own parts have in common with them.
//!
//! A conversion (`saved.rs`) keeps the entries of the ranks that saved in the common part.

use crate::slices::{Divisions, copy_common, cut};
use fleet_base::disk::Disk;
use fleet_base::{Error, Result};
use fleet_format::{
    CheckpointIndex, Meta, SaveState, list_tensors_on, save_state_on, save_tensors_on,
};
use fleet_ir::Division;
use fleet_strategy::{LocalVar, Spread};
use fleet_tensor::{DType, Element, Tensor, bf16, f16};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Named tensors.
pub(super) type Named = Vec<(String, Tensor)>;

/// Prefix of the entries that Fleet itself adds.
pub(super) const RESERVED: &str = "fleet.";
pub(super) const RANKS: &str = "fleet.ranks";
pub(super) const RUN: &str = "fleet.run";
pub(super) const LOCAL: &str = "fleet.local";
/// The variables of which a rank has a part, one a line: axis, groups, part, parts, name.
const DIVIDED: &str = "fleet.divided";
/// Stands between the number of parts and their padding, if they have any.
const PADDED: char = '+';
/// Number of neighbouring ranks that share layers.
const LAYERS: &str = "fleet.layers";
/// The job's step. A part in the folder of another step has been moved there.
pub(super) const STEP: &str = "fleet.step";

/// Number of ranks whose entries a conversion has kept. Rank and key follow in the other keys.
const CONVERTED: &str = "fleet.converted";

/// Maximum number of ranks that a checkpoint may name: the limit of a job.
pub(super) const RANKS_MAX: usize = 1 << 20;

/// The state that one rank writes.
pub(super) struct Part {
    /// Rank and number of ranks.
    pub place: (usize, usize),
    /// Tells the parts of this run from those that an earlier run left in the same folder.
    pub run: String,
    /// Number of completed steps of the job.
    pub job_step: u64,
    /// State that all ranks have in common; empty on ranks other than 0.
    pub common: Named,
    pub own: Named,
    /// Variables that differ between ranks.
    pub local: Vec<LocalVar>,
    /// Those of them of which this rank has a part.
    pub divided: Divisions,
    /// Number of neighbouring ranks that share layers.
    pub layers: usize,
    pub meta: Meta,
}

impl Part {
    pub fn write(&self, disk: &Arc<dyn Disk>, path: &Path) -> Result<()> {
        let (rank, ranks) = self.place;
        if ranks > 1 {
            let lines = self.divided.iter().map(|(name, it)| {
                let padding = match it.padding {
                    0 => String::new(),
                    padding => format!("{PADDED}{padding}"),
                };
                let Division { axis, groups, part, parts, .. } = it;
                format!("{axis}\t{groups}\t{part}\t{parts}{padding}\t{name}")
            });
            let lines = lines.collect::<Vec<_>>().join("\n");
            let entries = if lines.is_empty() { Vec::new() } else { vec![(DIVIDED, lines)] };
            self.write_one(disk, &rank_folder(path, rank), &self.own, entries)?;
        }
        if rank == 0 {
            let local = self.local.iter().map(|var| format!("{}\t{}", var.spread, var.name));
            let local = local.collect::<Vec<_>>().join("\n");
            let mut entries = vec![(RANKS, ranks.to_string()), (LOCAL, local)];
            if !self.divided.is_empty() {
                entries.push((LAYERS, self.layers.to_string()));
            }
            let entries = if ranks > 1 { entries } else { Vec::new() };
            self.write_one(disk, path, &self.common, entries)?;
        }
        Ok(())
    }

    fn write_one(
        &self,
        disk: &Arc<dyn Disk>,
        path: &Path,
        tensors: &Named,
        more: Vec<(&str, String)>,
    ) -> Result<()> {
        let mut meta = self.meta.clone();
        meta.entries.insert(STEP.to_string(), self.job_step.to_string());
        if self.place.1 > 1 {
            meta.entries.insert(RUN.to_string(), self.run.clone());
        }
        meta.entries.extend(more.into_iter().map(|(key, value)| (key.to_string(), value)));
        save_tensors_on(disk, path, tensors.iter().map(|(name, it)| (name.as_str(), it)), &meta)
    }
}

pub(super) const RANK_PREFIX: &str = "rank-";

pub(super) fn rank_folder(path: &Path, rank: usize) -> PathBuf {
    path.join(format!("{RANK_PREFIX}{rank:05}"))
}

/// Returns the folders of the ranks' parts: all that exist if the number of ranks is not readable.
pub(super) fn rank_folders(disk: &dyn Disk, path: &Path) -> Result<Vec<PathBuf>> {
    let head = list_tensors_on(disk, path).and_then(|(_, meta)| CommonMeta::read(path, &meta));
    if let Ok(head) = head {
        let ranks = (0..head.ranks).filter(|_| head.ranks > 1);
        return Ok(ranks.map(|rank| rank_folder(path, rank)).collect());
    }
    let names = disk.list(path).map_err(|error| Error::io("list", path, &error))?;
    let parts = names.iter().filter(|name| name.starts_with(RANK_PREFIX));
    Ok(parts.map(|name| path.join(name)).collect())
}

/// The state that one rank reads.
pub(super) struct Loaded {
    pub tensors: Named,
    /// The scope's step.
    pub step: u64,
    /// The caller's entries of the ranks that saved, by rank.
    pub entries: Vec<BTreeMap<String, String>>,
}

/// Returns whether every part exists and belongs to the same checkpoint. Does not read tensors.
pub(super) fn is_whole(disk: &dyn Disk, path: &Path) -> bool {
    let Ok((_, meta)) = list_tensors_on(disk, path) else { return false };
    let Ok(head) = CommonMeta::read(path, &meta) else { return false };
    (0..head.ranks).all(|rank| {
        let part = list_tensors_on(disk, rank_folder(path, rank));
        head.ranks == 1 || part.is_ok_and(|(_, meta)| head.check_part(path, &meta).is_ok())
    })
}

/// Syncs the folders, so that the names of a whole checkpoint's files survive a power cut. Each
/// rank does so for its own part, but the part is visible as whole a moment before.
pub(super) fn sync_names(disk: &dyn Disk, path: &Path) -> Result<()> {
    let sync = |folder: &Path| {
        disk.sync_folder(folder).map_err(|error| Error::io("flush", folder, &error))
    };
    let names = disk.list(path).map_err(|error| Error::io("list", path, &error))?;
    for name in names.iter().filter(|name| name.starts_with(RANK_PREFIX)) {
        sync(&path.join(name))?;
    }
    sync(path)
}

/// Returns whether some rank was stopped before it had saved, so that the checkpoint was never
/// whole.
pub(super) fn is_unfinished(disk: &dyn Disk, path: &Path) -> Result<bool> {
    Ok(why_unfinished(disk, path)?.is_some())
}

/// Returns which rank was stopped before it had saved, if one was.
pub(super) fn why_unfinished(disk: &dyn Disk, path: &Path) -> Result<Option<String>> {
    if save_state_on(disk, path)? != SaveState::Finished {
        return Ok(Some("rank 0 has not saved".to_string()));
    }
    let Ok((_, meta)) = list_tensors_on(disk, path) else { return Ok(None) };
    let Ok(head) = CommonMeta::read(path, &meta) else { return Ok(None) };
    for rank in (0..head.ranks).filter(|_| head.ranks > 1) {
        let part = rank_folder(path, rank);
        if save_state_on(disk, &part)? != SaveState::Finished {
            return Ok(Some(format!("rank {rank} has not saved")));
        }
        let of_run = |(_, meta): (_, Meta)| meta.entries.get(RUN) == Some(&head.run);
        if list_tensors_on(disk, &part).is_ok_and(|part| !of_run(part)) {
            return Ok(Some(format!("rank {rank} has not saved in this run of the job")));
        }
    }
    Ok(None)
}

/// The state that a rank reads.
pub(super) struct Wanted<'a> {
    /// Rank and number of ranks.
    pub place: (usize, usize),
    /// The variables of its program.
    pub names: &'a [&'a str],
    /// Those of them that differ between ranks.
    pub local: &'a [LocalVar],
    /// Those of which the rank has a part.
    pub divided: &'a Divisions,
    /// Number of neighbouring ranks that share layers.
    pub layers: usize,
}

impl Wanted<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// Returns how the values of ranks differ now; `None` for common variables.
    fn spread(&self, name: &str) -> Option<Spread> {
        self.local.iter().find(|var| var.name == name).map(|var| var.spread)
    }

    /// Combines the values of the ranks that saved, which differed as `saved` says. Gradients that
    /// every rank summed for itself may now have an owner, or the reverse.
    fn combine(&self, name: &str, values: &[&Tensor], saved: Spread) -> Result<Tensor> {
        match (saved, self.spread(name)) {
            (Spread::Share, Some(Spread::Owner)) => combine(values, Spread::Share, (0, 1)),
            (Spread::Owner, Some(Spread::Share)) => combine(values, Spread::Share, self.copy()),
            _ => combine(values, saved, self.copy()),
        }
    }

    /// Returns this rank's place among those with the same part of the model.
    fn copy(&self) -> (usize, usize) {
        (self.place.0 / self.layers, (self.place.1 / self.layers).max(1))
    }
}

/// Reads the checkpoint for a rank.
pub(super) fn load(disk: &dyn Disk, path: &Path, wanted: &Wanted<'_>) -> Result<Loaded> {
    let parts = Parts::open(disk, path)?;
    let tensors = parts.read(disk, wanted)?;
    Ok(Loaded { tensors, step: parts.common.meta().step, entries: parts.entries()? })
}

/// The parts of a checkpoint. Their headers have been read, their tensors have not.
pub(super) struct Parts {
    pub path: PathBuf,
    pub head: CommonMeta,
    /// State that all ranks have in common.
    pub common: CheckpointIndex,
    /// The ranks' own state, by rank; empty in a checkpoint of one rank.
    pub ranks: Vec<RankPart>,
}

/// The part of one rank.
pub(super) struct RankPart {
    pub index: CheckpointIndex,
    /// The variables of which the rank has a part.
    pub divided: Divisions,
}

impl RankPart {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.index.tensors().map(|tensor| tensor.name())
    }
}

impl Parts {
    /// Reads the headers of all parts.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Parts> {
        let common = CheckpointIndex::open_on(disk, path)?;
        let head = CommonMeta::read(path, common.meta())?;
        let mut ranks = Vec::new();
        for rank in (0..head.ranks).filter(|_| head.ranks > 1) {
            let folder = rank_folder(path, rank);
            let index = CheckpointIndex::open_on(disk, &folder)?;
            head.check_part(&folder, index.meta())?;
            let divided = read_divided(&folder, index.meta())?;
            ranks.push(RankPart { index, divided });
        }
        Ok(Parts { path: path.to_path_buf(), head, common, ranks })
    }

    /// Returns the caller's entries of the ranks that saved, by rank. In a converted checkpoint
    /// these are the ranks before the conversion.
    pub fn entries(&self) -> Result<Vec<BTreeMap<String, String>>> {
        let common = &self.common.meta().entries;
        if let Some(count) = common.get(CONVERTED) {
            return converted_entries(count, common).ok_or_else(|| {
                let what = "invalid entries of ranks in the converted checkpoint";
                Error::invalid(what).at(self.path.display())
            });
        }
        if self.ranks.is_empty() {
            return Ok(vec![own_entries(common.clone())]);
        }
        let of = |part: &RankPart| own_entries(part.index.meta().entries.clone());
        Ok(self.ranks.iter().map(of).collect())
    }

    /// Reads the variables of a rank.
    pub fn read(&self, disk: &dyn Disk, wanted: &Wanted<'_>) -> Result<Named> {
        let copy = wanted.copy();
        let mut tensors = Vec::new();
        for name in self.common.tensors().map(|it| it.name()).filter(|name| wanted.has(name)) {
            let whole = self.common.read_on(disk, name)?;
            let part = wanted.divided.get(name).map(|division| cut(&whole, division)).transpose();
            let part = part.map_err(|error| error.at(name).at(self.path.display()))?;
            let mut tensor = part.unwrap_or(whole);
            // Variables that the saving ranks had in common may have to be divided among the ranks
            // now.
            if copy.1 > 1 && wanted.spread(name) == Some(Spread::Share) {
                tensor = combine(&[&tensor], Spread::Share, copy)?;
            }
            tensors.push((name.to_string(), tensor));
        }
        if self.ranks.is_empty() {
            return Ok(tensors);
        }
        let reading = Reading { parts: self, disk, wanted };
        reading.owned(&mut tensors)?;
        reading.combined(&mut tensors)?;
        reading.divided(&mut tensors)?;
        Ok(tensors)
    }
}

/// Reads the ranks' own state for one rank.
struct Reading<'a> {
    parts: &'a Parts,
    disk: &'a dyn Disk,
    wanted: &'a Wanted<'a>,
}

impl Reading<'_> {
    /// Returns whether this rank had the same place in the job that saved.
    fn is_same_layout(&self) -> bool {
        let Wanted { place, layers, .. } = self.wanted;
        let head = &self.parts.head;
        head.ranks == place.1 && head.layers == *layers
    }

    /// Returns the ranks that hold a variable as `holds` says, this rank's own number first.
    fn holders(&self, holds: impl Fn(&RankPart) -> bool) -> Vec<usize> {
        let own = self.wanted.place.0;
        let mut found: Vec<usize> =
            (0..self.ranks().len()).filter(|rank| holds(&self.ranks()[*rank])).collect();
        if let Some(at) = found.iter().position(|rank| *rank == own) {
            found[..=at].rotate_right(1);
        }
        found
    }

    fn ranks(&self) -> &[RankPart] {
        &self.parts.ranks
    }

    fn read(&self, rank: usize, which: impl Fn(&str) -> bool) -> Result<Named> {
        let names = self.ranks()[rank].names().filter(|name| which(name));
        names.map(|name| Ok((name.to_string(), self.read_one(rank, name)?))).collect()
    }

    fn read_one(&self, rank: usize, name: &str) -> Result<Tensor> {
        match self.ranks()[rank].index.find(name) {
            Some(_) => self.ranks()[rank].index.read_on(self.disk, name),
            None => Err(self.missing(name)),
        }
    }

    fn missing(&self, name: &str) -> Error {
        let what = format!("missing variable '{name}' in a rank's part of the checkpoint");
        Error::invalid(what).at(self.parts.path.display())
    }

    /// Reads whole variables that one rank owned.
    fn owned(&self, tensors: &mut Named) -> Result<()> {
        let is_owned = |part: &RankPart, name: &str| {
            self.parts.head.spread(name).is_none() && !part.divided.contains_key(name)
        };
        let is_wanted = |name: &&str| self.wanted.has(name);
        // The rank whose part has each variable.
        let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
        for (rank, part) in self.ranks().iter().enumerate() {
            for name in part.names().filter(is_wanted).filter(|name| is_owned(part, name)) {
                let owner = owners.entry(name).or_insert(rank);
                // Statistics differ between copies of a stage, and each copy resumes with its own.
                if self.wanted.place == (rank, self.parts.head.ranks) {
                    *owner = rank;
                }
            }
        }
        for rank in 0..self.ranks().len() {
            if !owners.values().any(|owner| *owner == rank) {
                continue;
            }
            for (name, tensor) in self.read(rank, |name| owners.get(name) == Some(&rank))? {
                let tensor = self.wanted.combine(&name, &[&tensor], Spread::Owner)?;
                let own = self.wanted.divided.get(&name).map(|part| cut(&tensor, part));
                let own = own.transpose().map_err(|error| error.at(&name))?;
                tensors.push((name, own.unwrap_or(tensor)));
            }
        }
        Ok(())
    }

    /// Combines the values of whole variables of which every copy of the model had one.
    fn combined(&self, tensors: &mut Named) -> Result<()> {
        let is_divided =
            |name: &str| self.ranks().iter().any(|part| part.divided.contains_key(name));
        let head = &self.parts.head;
        let local = head.local.iter().filter(|var| !is_divided(&var.name));
        let local: Vec<&LocalVar> = local.filter(|var| self.wanted.has(&var.name)).collect();
        for LocalVar { name, spread } in local {
            // A rank gets its own value back if ranks have values in the same way.
            let is_same = self.is_same_layout() && self.wanted.spread(name) == Some(*spread);
            let tensor = if is_same {
                self.read_one(self.wanted.place.0, name)?
            } else {
                // Ranks that share layers have the same values.
                let ranks = (0..self.ranks().len()).step_by(head.layers);
                let values = ranks.map(|rank| self.read_one(rank, name));
                let values = values.collect::<Result<Vec<Tensor>>>()?;
                let values: Vec<&Tensor> = values.iter().collect();
                let combined = self.wanted.combine(name, &values, *spread);
                combined.map_err(|error| error.at(name))?
            };
            let own = self.wanted.divided.get(name).map(|part| cut(&tensor, part)).transpose()?;
            tensors.push((name.clone(), own.unwrap_or(tensor)));
        }
        Ok(())
    }

    /// Reads variables of which the ranks that saved had parts.
    fn divided(&self, tensors: &mut Named) -> Result<()> {
        let names = self.ranks().iter().flat_map(|part| part.divided.keys());
        let names: BTreeSet<&String> = names.filter(|name| self.wanted.has(name)).collect();
        for name in names {
            let tensor = self.assemble(name).map_err(|error| error.at(name))?;
            tensors.push((name.clone(), tensor));
        }
        Ok(())
    }

    /// Returns this rank's part of a variable, or all of it, from the parts that ranks had.
    fn assemble(&self, name: &str) -> Result<Tensor> {
        let spread = self.parts.head.spread(name);
        let holders = self.holders(|part| part.divided.contains_key(name));
        let division = |rank: usize| self.ranks()[rank].divided[name];
        let wanted = self.wanted.divided.get(name).copied();
        if self.is_same_layout()
            && spread == self.wanted.spread(name).filter(|it| *it != Spread::Owner)
            && let Some(own) = holders.first().filter(|rank| Some(division(**rank)) == wanted)
        {
            return self.read_one(*own, name);
        }
        let mut made: Option<(Tensor, Division)> = None;
        let parts: BTreeSet<usize> = holders.iter().map(|rank| division(*rank).part).collect();
        for part in &parts {
            let with_part = holders.iter().copied().filter(|rank| division(*rank).part == *part);
            let of_copies: Vec<usize> = match spread {
                // All copies have the same value.
                None => with_part.take(1).collect(),
                Some(_) => with_part.collect(),
            };
            let values = of_copies
                .iter()
                .map(|rank| self.read_one(*rank, name))
                .collect::<Result<Vec<_>>>()?;
            let values: Vec<&Tensor> = values.iter().collect();
            let saved = spread.unwrap_or(Spread::Owner);
            let value = self.wanted.combine(name, &values, saved)?;
            let held = division(of_copies[0]);
            let (to, of_to) = match &mut made {
                Some((tensor, division)) => (tensor, *division),
                none => {
                    let (tensor, division) = empty_for(&value, held, wanted, parts.len())?;
                    let (tensor, division) = none.insert((tensor, division));
                    (tensor, *division)
                }
            };
            copy_common((to, of_to), (&value, held));
        }
        made.map(|(tensor, _)| tensor).ok_or_else(|| self.missing(name))
    }
}

/// Returns a tensor for the wanted part of a variable, or for all of it. `value` is one of its
/// parts, of which `count` exist.
fn empty_for(
    value: &Tensor,
    held: Division,
    wanted: Option<Division>,
    count: usize,
) -> Result<(Tensor, Division)> {
    let whole = held.whole(value.shape()).filter(|_| held.fits(value.shape()));
    let Some(whole) = whole.filter(|_| count == held.parts) else {
        return Err(Error::invalid("the checkpoint lacks parts of a divided variable")
            .expected(format!("{} parts", held.parts))
            .got(count));
    };
    let wanted = wanted.unwrap_or(held.undivided());
    if (wanted.axis, wanted.groups) != (held.axis, held.groups) {
        return Err(Error::invalid("a variable is divided along another axis")
            .expected(format!("axis {}, {} blocks", held.axis, held.groups))
            .got(format!("axis {}, {} blocks", wanted.axis, wanted.groups)));
    }
    let Some(shape) = wanted.of(&whole) else {
        return Err(Error::invalid("the checkpoint does not divide into the parts of this job")
            .expected(format!("a multiple of {}", wanted.groups * wanted.parts))
            .got(whole));
    };
    Ok((Tensor::zeros(value.dtype(), shape)?, wanted))
}

/// Reads the list of variables of which a rank has a part.
fn read_divided(path: &Path, meta: &Meta) -> Result<Divisions> {
    let mut divided = Divisions::new();
    for line in meta.entries.get(DIVIDED).into_iter().flat_map(|list| list.lines()) {
        let broken = || {
            Error::invalid("invalid list of divided variables in the checkpoint").at(path.display())
        };
        let fields: Vec<&str> = line.splitn(5, '\t').collect();
        let [axis, groups, part, parts, name] = fields[..] else { return Err(broken()) };
        // The padding of the last parts follows their number: `4+2`.
        let (parts, padding) = parts.split_once(PADDED).unwrap_or((parts, "0"));
        let number = |text: &str| text.parse::<usize>().ok().filter(|it| *it <= RANKS_MAX);
        let all = [axis, groups, part, parts, padding].map(number);
        let [Some(axis), Some(groups), Some(part), Some(parts), Some(padding)] = all else {
            return Err(broken());
        };
        if groups == 0 || part >= parts || padding > 0 && (groups > 1 || padding >= parts) {
            return Err(broken());
        }
        divided.insert(name.to_string(), Division { axis, groups, part, parts, padding });
    }
    Ok(divided)
}

/// Description of the whole checkpoint, from its common part.
pub(super) struct CommonMeta {
    pub ranks: usize,
    /// Number of neighbouring ranks that shared layers.
    pub layers: usize,
    pub run: String,
    /// `None` in a checkpoint of an older version.
    pub step: Option<String>,
    /// Variables of which every rank's part has a value.
    pub local: Vec<LocalVar>,
}

impl CommonMeta {
    /// Returns how the values of the ranks pass to another number of ranks; `None` for a variable
    /// of which all ranks that have it have the same value.
    pub fn spread(&self, name: &str) -> Option<Spread> {
        self.local.iter().find(|var| var.name == name).map(|var| var.spread)
    }

    fn read(path: &Path, meta: &Meta) -> Result<CommonMeta> {
        let step = meta.entries.get(STEP).cloned();
        let folder = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let named: Option<u64> = folder.strip_prefix(super::PREFIX).and_then(|it| it.parse().ok());
        if let (Some(step), Some(named)) = (&step, named)
            && *step != named.to_string()
        {
            return Err(Error::invalid("the checkpoint's step does not match its folder's name")
                .expected(format!("step {named}"))
                .got(format!("step {step}"))
                .at(path.display())
                .help("restore the folder's original name"));
        }
        let Some(ranks) = meta.entries.get(RANKS) else {
            let (run, local) = Default::default();
            return Ok(CommonMeta { ranks: 1, layers: 1, run, step, local });
        };
        let broken = |what: &str| {
            Err(Error::invalid(format!("invalid {what} in the checkpoint")).at(path.display()))
        };
        let ranks = match ranks.parse() {
            Ok(ranks) if (2..=RANKS_MAX).contains(&ranks) => ranks,
            _ => return broken("rank count"),
        };
        let layers = match meta.entries.get(LAYERS).map(|layers| layers.parse()) {
            None => 1,
            Some(Ok(layers)) if (1..=ranks).contains(&layers) && ranks % layers == 0 => layers,
            Some(_) => return broken("number of ranks that share layers"),
        };
        let mut local = Vec::new();
        for line in meta.entries.get(LOCAL).into_iter().flat_map(|list| list.lines()) {
            let Some((spread, name)) = line.split_once('\t') else {
                return broken("list of rank variables");
            };
            let Ok(spread) = spread.parse() else { return broken("list of rank variables") };
            if spread == Spread::Owner {
                continue;
            }
            local.push(LocalVar { name: name.to_string(), spread });
        }
        let run = meta.entries.get(RUN).cloned().unwrap_or_default();
        Ok(CommonMeta { ranks, layers, run, step, local })
    }

    fn check_part(&self, path: &Path, meta: &Meta) -> Result<()> {
        let found = meta.entries.get(RUN).map_or("", String::as_str);
        if found != self.run {
            return Err(Error::invalid("the rank's part belongs to another run of the job")
                .expected(&self.run)
                .got(found)
                .at(path.display()));
        }
        let step = |step: Option<&String>| match step {
            Some(step) => format!("step {step}"),
            None => "no step".to_string(),
        };
        let found = meta.entries.get(STEP);
        match found == self.step.as_ref() {
            true => Ok(()),
            false => Err(Error::invalid("the rank's part belongs to another checkpoint")
                .expected(step(self.step.as_ref()))
                .got(step(found))
                .at(path.display())),
        }
    }
}

/// Returns the entries of ranks that a conversion keeps, with their count.
pub(super) fn kept_entries(ranks: &[BTreeMap<String, String>]) -> BTreeMap<String, String> {
    let of = |(rank, entries): (usize, &BTreeMap<String, String>)| {
        let named =
            |(key, value): (&String, &String)| (format!("{CONVERTED}:{rank}:{key}"), value.clone());
        entries.iter().map(named).collect::<Vec<_>>()
    };
    let kept = ranks.iter().enumerate().flat_map(of);
    kept.chain([(CONVERTED.to_string(), ranks.len().to_string())]).collect()
}

/// Reverses [`kept_entries`].
fn converted_entries(
    count: &str,
    entries: &BTreeMap<String, String>,
) -> Option<Vec<BTreeMap<String, String>>> {
    let count = count.parse().ok().filter(|count| (1..=RANKS_MAX).contains(count))?;
    let mut ranks = vec![BTreeMap::new(); count];
    for (key, value) in entries {
        let Some(rest) = key.strip_prefix(CONVERTED).and_then(|it| it.strip_prefix(':')) else {
            continue;
        };
        let (rank, key) = rest.split_once(':')?;
        ranks.get_mut(rank.parse::<usize>().ok()?)?.insert(key.to_string(), value.clone());
    }
    Some(ranks)
}

fn own_entries(mut entries: BTreeMap<String, String>) -> BTreeMap<String, String> {
    entries.retain(|key, _| !key.starts_with(RESERVED));
    entries
}

/// Computes the value for rank `place.0` of `place.1` from the values of the ranks that saved.
fn combine(values: &[&Tensor], spread: Spread, place: (usize, usize)) -> Result<Tensor> {
    let Some(first) = values.first() else {
        return Err(Error::internal("variable without values"));
    };
    if let Some(other) =
        values.iter().find(|it| it.shape() != first.shape() || it.dtype() != first.dtype())
    {
        return Err(Error::invalid("ranks saved different types or shapes")
            .expected(format!("{}{}", first.dtype(), first.shape()))
            .got(format!("{}{}", other.dtype(), other.shape())));
    }
    let parts = match spread {
        Spread::First | Spread::Owner => return first.try_clone(),
        Spread::Mean => values.len() as f64,
        Spread::Share => place.1 as f64,
    };
    match first.dtype() {
        DType::F32 => floats::<f32>(values, parts, f64::from, |x| x as f32),
        DType::F64 => floats::<f64>(values, parts, |x| x, |x| x),
        DType::F16 => floats::<f16>(values, parts, f16::to_f64, f16::from_f64),
        DType::BF16 => floats::<bf16>(values, parts, bf16::to_f64, bf16::from_f64),
        DType::I64 => integers::<i64>(values, place, i128::from, |x| x as i64),
        DType::I32 => integers::<i32>(values, place, i128::from, |x| x as i32),
        _ => first.try_clone(),
    }
}

fn floats<T: Element>(
    values: &[&Tensor],
    parts: f64,
    read: impl Fn(T) -> f64,
    write: impl Fn(f64) -> T,
) -> Result<Tensor> {
    let mut sum = vec![0.0; values[0].as_slice::<T>()?.len()];
    for tensor in values {
        sum.iter_mut().zip(tensor.as_slice::<T>()?).for_each(|(sum, x)| *sum += read(*x));
    }
    let out: Vec<T> = sum.into_iter().map(|sum| write(sum / parts)).collect();
    Tensor::from_slice(&out, *values[0].shape())
}

/// Divides counts; the remainder goes to the first ranks.
fn integers<T: Element>(
    values: &[&Tensor],
    (rank, ranks): (usize, usize),
    read: impl Fn(T) -> i128,
    write: impl Fn(i128) -> T,
) -> Result<Tensor> {
    let mut sum = vec![0i128; values[0].as_slice::<T>()?.len()];
    for tensor in values {
        sum.iter_mut().zip(tensor.as_slice::<T>()?).for_each(|(sum, x)| *sum += read(*x));
    }
    let (rank, ranks) = (rank as i128, ranks as i128);
    let share = |sum: i128| sum.div_euclid(ranks) + i128::from(rank < sum.rem_euclid(ranks));
    let out: Vec<T> = sum.into_iter().map(|sum| write(share(sum))).collect();
    Tensor::from_slice(&out, *values[0].shape())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::disk::RealDisk;

    #[test]
    fn values_of_ranks_are_handed_out() {
        let floats = |values: &[f32]| Tensor::from_slice(values, [values.len() as i64]).unwrap();
        let (a, b) = (floats(&[1.0, 4.0]), floats(&[3.0, 0.0]));
        let given = |spread, place| combine(&[&a, &b], spread, place).unwrap().to_vec::<f32>();
        assert_eq!(given(Spread::Mean, (3, 8)).unwrap(), [2.0, 2.0]);
        assert_eq!(given(Spread::Share, (3, 8)).unwrap(), [0.5, 0.5]);
        assert_eq!(given(Spread::First, (3, 8)).unwrap(), [1.0, 4.0]);
        let counts = [7i64, 3].map(|count| Tensor::from_slice(&[count], [1]).unwrap());
        let counts = [&counts[0], &counts[1]];
        let shares: Vec<i64> = (0..4)
            .map(|rank| combine(&counts, Spread::Share, (rank, 4)).unwrap().item().unwrap())
            .collect();
        assert_eq!(shares, [3, 3, 2, 2]);
        assert!(combine(&[&a, counts[0]], Spread::Mean, (0, 1)).is_err());
    }

    fn part(rank: usize, ranks: usize, run: &str, own: f32) -> Part {
        let tensor = |value: f32| Tensor::from_slice(&[value], [1]).unwrap();
        let named = |name: &str, value: f32| vec![(name.to_string(), tensor(value))];
        let local = vec![LocalVar { name: "own".into(), spread: Spread::Mean }];
        let entries = [("cursor".to_string(), format!("{rank}"))].into();
        let meta = Meta { step: 5, entries };
        let (mut common, mut own) = (named("common", 7.0), named("own", own));
        if ranks == 1 {
            common.append(&mut own);
        }
        let divided = Divisions::new();
        Part {
            place: (rank, ranks),
            run: run.into(),
            job_step: 5,
            common,
            own,
            local,
            divided,
            layers: 1,
            meta,
        }
    }

    fn read(path: &Path, place: (usize, usize), names: &[&str]) -> Result<Loaded> {
        let divided = &Divisions::new();
        let local = &[LocalVar { name: "own".into(), spread: Spread::Mean }];
        load(&RealDisk, path, &Wanted { place, names, local, divided, layers: 1 })
    }

    fn own(path: &Path, place: (usize, usize)) -> Result<f32> {
        let loaded = read(path, place, &["common", "own"])?;
        let found = loaded.tensors.iter().find(|(name, _)| name == "own").unwrap();
        found.1.item::<f32>()
    }

    #[test]
    fn a_checkpoint_is_whole_when_all_parts_are() {
        let path = std::env::temp_dir().join(format!("fleet-parts-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        part(0, 2, "1", 10.0).write(&RealDisk::handle(), &path).unwrap();
        assert!(!is_whole(&RealDisk, &path) && own(&path, (0, 2)).is_err(), "rank 1 has not saved");
        part(1, 2, "1", 20.0).write(&RealDisk::handle(), &path).unwrap();
        assert!(is_whole(&RealDisk, &path));
        assert_eq!(own(&path, (1, 2)).unwrap(), 20.0);
        assert_eq!(own(&path, (2, 3)).unwrap(), 15.0);
        assert_eq!(own(&path, (0, 1)).unwrap(), 15.0);
        assert_eq!(read(&path, (0, 3), &[]).unwrap().entries[1]["cursor"], "1");

        // The job was restarted, and stopped before rank 1 saved this step.
        part(0, 2, "2", 30.0).write(&RealDisk::handle(), &path).unwrap();
        assert!(!is_whole(&RealDisk, &path));
        let error = own(&path, (1, 2)).unwrap_err().to_string();
        assert!(error.contains("another run of the job"), "{error}");

        // A part of the same run, copied from another checkpoint.
        part(1, 2, "2", 40.0).write(&RealDisk::handle(), &path).unwrap();
        assert!(is_whole(&RealDisk, &path));
        let other = Part { job_step: 4, ..part(1, 2, "2", 50.0) };
        other.write(&RealDisk::handle(), &path).unwrap();
        assert!(!is_whole(&RealDisk, &path));
        let error = own(&path, (1, 2)).unwrap_err().to_string();
        assert!(error.contains("another checkpoint: expected step 5, got step 4"), "{error}");

        part(0, 1, "", 40.0).write(&RealDisk::handle(), &path).unwrap();
        assert!(is_whole(&RealDisk, &path));
        assert_eq!(own(&path, (5, 8)).unwrap(), 40.0);
        std::fs::remove_dir_all(&path).unwrap();
    }

    /// Sums of gradients pass between ranks that each have a share and an owner of all of it.
    #[test]
    fn shares_become_a_whole_and_the_reverse() {
        let path = std::env::temp_dir().join(format!("fleet-shares-{}", std::process::id()));
        let of = |spread| LocalVar { name: "sum".into(), spread };
        let check = |saved: Spread, values: [f32; 2], to: Spread, expected: f32| {
            std::fs::remove_dir_all(&path).ok();
            for (rank, value) in values.into_iter().enumerate() {
                let tensor = Tensor::from_slice(&[value], [1]).unwrap();
                let is_held = saved == Spread::Share || rank == 0;
                let own = if is_held { vec![("sum".to_string(), tensor)] } else { Vec::new() };
                let part = Part { own, local: vec![of(saved)], ..part(rank, 2, "1", 0.0) };
                part.write(&RealDisk::handle(), &path).unwrap();
            }
            let (names, local, divided) = (&["sum"], &[of(to)], &Divisions::new());
            let wanted = Wanted { place: (1, 2), names, local, divided, layers: 1 };
            let loaded = load(&RealDisk, &path, &wanted).unwrap().tensors;
            assert_eq!(loaded[0].1.item::<f32>().unwrap(), expected, "{saved} to {to}");
        };
        check(Spread::Share, [3.0, 5.0], Spread::Share, 5.0);
        check(Spread::Share, [3.0, 5.0], Spread::Owner, 8.0);
        check(Spread::Owner, [8.0, 0.0], Spread::Share, 4.0);
        check(Spread::Owner, [8.0, 0.0], Spread::Owner, 8.0);
        std::fs::remove_dir_all(&path).unwrap();
    }

    /// Each rank reads its own variables, whichever rank had them.
    #[test]
    fn state_with_an_owner_goes_to_its_next_owner() {
        let path = std::env::temp_dir().join(format!("fleet-owners-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        for (rank, name) in ["a", "b"].into_iter().enumerate() {
            let tensor = Tensor::from_slice(&[rank as f32], [1]).unwrap();
            let own = vec![(name.to_string(), tensor)];
            let local = vec![LocalVar { name: name.into(), spread: Spread::Owner }];
            let part = Part { own, local, ..part(rank, 2, "1", 0.0) };
            part.write(&RealDisk::handle(), &path).unwrap();
        }
        for (place, names) in [((0, 2), vec!["a"]), ((0, 2), vec!["b"]), ((0, 1), vec!["a", "b"])] {
            let mut loaded = read(&path, place, &names).unwrap().tensors;
            loaded.sort_by(|a, b| a.0.cmp(&b.0));
            let found: Vec<(&str, f32)> =
                loaded.iter().map(|(name, it)| (name.as_str(), it.item().unwrap())).collect();
            let value = |name: &str| f32::from(u8::from(name == "b"));
            let expected: Vec<(&str, f32)> = names.iter().map(|it| (*it, value(it))).collect();
            assert_eq!(found, expected);
        }
        std::fs::remove_dir_all(&path).unwrap();
    }

    /// A job killed during its very first save starts from the beginning. A damaged checkpoint is
    /// an error instead.
    #[test]
    fn what_was_never_whole_is_no_checkpoint() {
        use crate::{CheckpointPolicy, Checkpoints};
        let folder = std::env::temp_dir().join(format!("fleet-unfinished-{}", std::process::id()));
        std::fs::remove_dir_all(&folder).ok();
        let mut checkpoints = Checkpoints::open(&folder, CheckpointPolicy::default()).unwrap();
        let mut resume = || {
            let program = fleet_ir::Program::new();
            checkpoints.resume(&program, &mut fleet_exec::Scope::new())
        };
        let first = folder.join("step-000000000005");
        part(1, 2, "1", 20.0).write(&RealDisk::handle(), &first).unwrap();
        assert!(is_unfinished(&RealDisk, &first).unwrap());
        assert_eq!(resume().unwrap(), None, "rank 0 has not saved");
        part(0, 2, "1", 10.0).write(&RealDisk::handle(), &first).unwrap();
        assert!(!is_unfinished(&RealDisk, &first).unwrap());
        part(0, 2, "2", 10.0).write(&RealDisk::handle(), &first).unwrap();
        assert!(is_unfinished(&RealDisk, &first).unwrap());
        assert_eq!(resume().unwrap(), None, "rank 1 has not saved in this run");

        part(1, 2, "2", 20.0).write(&RealDisk::handle(), &first).unwrap();
        let files = std::fs::read_dir(rank_folder(&first, 1)).unwrap().flatten();
        files.for_each(|file| std::fs::write(file.path(), "damage").unwrap());
        assert!(!is_unfinished(&RealDisk, &first).unwrap());
        let error = resume().unwrap_err().to_string();
        assert!(error.contains("no readable checkpoint in the folder"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
