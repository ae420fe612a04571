//! Settings of a table that its lookups and its description have (`sparse_embedding`,
//! `downpour_table_param`).

use fleet_base::{Error, Result, text};
use fleet_config::TableParameter;
use fleet_ir::{Op, Program, VarId};
use fleet_ops::nn::lookup_table_v2;
use fleet_table::Entry;

/// The settings of one table.
pub(super) struct LookupSettings {
    pub entry: Entry,
    /// The documented class; empty if none is named.
    pub class: String,
    /// A note for a class that is stored in another way.
    pub note: Option<String>,
    /// Whether a lookup names the slot of its feature.
    pub has_slot: bool,
    /// Whether a lookup takes every 64-bit number as an id.
    pub any_id: bool,
}

/// Documented classes of tables of rows, and whether they are those of GEO.
const CLASSES: [(&str, bool); 6] = [
    ("MemorySparseTable", false),
    ("CommonSparseTable", false),
    ("DownpourSparseTable", false),
    (SSD, false),
    (GEO, true),
    ("SparseGeoTable", true),
];
const SSD: &str = "SSDSparseTable";
/// The class of GEO's tables, which replaces another one in a program.
const GEO: &str = "MemorySparseGeoTable";

pub(super) fn is_lookup(name: &str) -> bool {
    [&lookup_table_v2::DEF, &lookup_table_v2::V1].iter().any(|def| def.spec.name == name)
}

/// Returns the settings of the table that a parameter becomes.
pub(super) fn lookup_settings(
    main: &Program,
    param: VarId,
    described: Option<&TableParameter>,
    is_geo: bool,
) -> Result<LookupSettings> {
    let name = main.var_name(param);
    let ops = main.root_ops().map(|(_, op)| op);
    let lookups: Vec<&Op> =
        ops.filter(|op| is_lookup(op.name()) && op.input("W").first() == Some(&param)).collect();
    // Lookups that only read admit no ids.
    let trained = lookups.iter().filter(|op| !op.attr_bool("is_test"));
    let entry = agreed(name, "entry", trained.map(|op| op.attr_str("entry")))?;
    let entry = match entry {
        "" => Entry::None,
        entry => Entry::parse(entry)?,
    };
    if is_geo && entry != Entry::None {
        return Err(Error::unsupported(format!(
            "GEO does not support the entry of '{name}': every worker holds all rows of the table"
        ))
        .expected("no entry")
        .got(entry)
        .help("remove the entry, or set k_steps to 0: in other modes servers admit ids"));
    }
    let in_program =
        agreed(name, "table_class", lookups.iter().map(|op| op.attr_str("table_class")))?;
    let class = match described.map_or("", |it| it.table_class()) {
        "" => in_program,
        class => class,
    };
    check_class(name, class, is_geo)?;
    // Rows are not stored on disk.
    let note = (class == SSD).then(|| {
        format!("'{name}': rows of {SSD} are kept in memory: tables on disk are not supported")
    });
    let class = if is_geo { GEO } else { class }.to_string();
    let has_slot = lookups.iter().any(|op| op.attr_int("slot") >= 0);
    let any_id = lookups.iter().any(|op| op.attr_bool("any_id"));
    Ok(LookupSettings { entry, class, note, has_slot, any_id })
}

/// Returns the value that all lookups of a table have; `values` is not empty unless all only read.
fn agreed<'p>(
    table: &str,
    what: &str,
    mut values: impl Iterator<Item = &'p str>,
) -> Result<&'p str> {
    let Some(first) = values.next() else { return Ok("") };
    match values.find(|value| *value != first) {
        None => Ok(first),
        Some(other) => Err(Error::invalid(format!("lookups of '{table}' differ in their {what}"))
            .expected(format!("'{first}', as in the first lookup"))
            .got(format!("'{other}'"))
            .help("a table has one: give all its lookups the same")),
    }
}

fn check_class(table: &str, class: &str, is_geo: bool) -> Result<()> {
    if class.is_empty() {
        return Ok(());
    }
    let known = CLASSES.map(|(class, _)| class);
    match CLASSES.iter().find(|(known, _)| *known == class) {
        // A program may name the usual class in any mode; tables of GEO get theirs.
        Some((_, of_geo)) if is_geo || !of_geo => Ok(()),
        Some(_) => Err(Error::invalid(format!("'{table}' has a table class of GEO"))
            .expected("MemorySparseTable, or none: this job is not in GEO mode")
            .got(class)
            .help("set a_sync and k_steps above 0 for GEO, or remove the table_class")),
        None => {
            let hint = text::did_you_mean(class, known);
            Err(Error::invalid(format!("unknown table_class of '{table}'{hint}"))
                .expected(format!("one of {}", known.join(", ")))
                .got(format!("'{class}'")))
        }
    }
}

/// Returns a note for lookups that name a slot, of a table that does not store slots.
pub(super) fn slot_note(table: &str) -> String {
    format!(
        "'{table}': only click tables store the slot of a sparse_embedding: describe a click table \
         for it (downpour_table_param), or remove the slot"
    )
}
