//! Rules of a job file that concern several fields. Each rule is a function that adds problems; all
//! of them run, so that one reading shows everything.

use crate::file::{Text, View, placed_texts, read_text};
use crate::job::{
    ColumnKind, ColumnPart, Embed, Job, ModelKind, Role, Side, Split, TaskKind, bytes_of,
};
use crate::made;
use crate::origin::{LOCAL_HELP, fault_of_object, is_object};
use fleet_base::text;
use fleet_config::{Place, Problem};
use std::path::Path;

/// Returns all problems of the text of a job file, in the order of their places.
///
/// ```
/// let text = "version = 1\ndata = { train = \"a.csv\" }\n[columns]\ny = { roll = \"label\" }\n";
/// let problems = fleet_job::problems_of("job.toml".as_ref(), text);
/// let texts: Vec<String> = problems.iter().map(|problem| problem.to_string()).collect();
/// let start = "job.toml:4:7: error: columns.y.roll: unknown field; did you mean 'role'?";
/// assert!(texts.iter().any(|text| text.starts_with(start)));
/// ```
pub fn problems_of(file: &Path, text: &str) -> Vec<Problem> {
    check(&read_text(file, text)).1
}

/// Returns the job of a file, and all problems of the file.
pub fn check(file: &Text) -> (Job, Vec<Problem>) {
    let (job, mut problems) = check_rules(file);
    if View::root(&file.root).node("tune").is_some() {
        let found = crate::tune::space::problems(file, |trial| check_rules(trial).1);
        problems
            .extend(found.into_iter().map(|it| Problem { file: Some(file.file.clone()), ..it }));
        problems.sort_by_key(|problem| problem.place);
    }
    (job, problems)
}

fn check_rules(file: &Text) -> (Job, Vec<Problem>) {
    let root = View::root(&file.root);
    let job = Job::of(root);
    let mut rules = Rules { root, job: &job, problems: Vec::new() };
    // A table that is missing or not readable is a problem already; its rules would repeat it.
    let is_readable = file.problems.iter().all(|problem| !problem.path.is_empty());
    if is_readable && root.node("columns").is_some() {
        rules.columns();
        rules.labels();
        rules.crosses();
        rules.slices();
        rules.ranking();
    }
    if file.problems.is_empty() {
        rules.splits();
    }
    rules.data();
    rules.model();
    rules.train();
    let mut problems = file.problems.clone();
    let found = rules.problems.into_iter();
    problems.extend(found.map(|problem| Problem { file: Some(file.file.clone()), ..problem }));
    problems.sort_by_key(|problem| problem.place);
    (job, problems)
}

struct Rules<'t> {
    root: View<'t>,
    job: &'t Job,
    problems: Vec<Problem>,
}

impl<'t> Rules<'t> {
    fn add(&mut self, problem: Problem, place: Option<Place>) {
        self.problems.push(match place {
            Some(place) => problem.at(place),
            None => problem,
        });
    }

    fn column_view(&self, name: &str) -> View<'t> {
        self.root.table("columns").table(name)
    }

    fn columns(&mut self) {
        let job = self.job;
        for column in &job.columns {
            let view = self.column_view(&column.name);
            let path = format!("columns.{}", column.name);
            if column.role == Role::Feature && view.text("kind").is_none() {
                let problem = Problem::error(format!("{path}.kind"), "a feature needs a kind")
                    .help("add kind = \"number\", \"category\" or \"categories\"");
                self.add(problem, column.at);
                continue;
            }
            self.kind_of_role(column, &path, view);
            self.fields_of_kind(column, &path, view);
        }
        let mut sources: Vec<(&str, &ColumnPart)> = Vec::new();
        for column in &job.columns {
            match sources.iter().find(|(source, _)| *source == column.source) {
                Some((source, first)) => {
                    let message =
                        format!("the column '{source}' of the files is already '{}'", first.name);
                    let problem = Problem::error(format!("columns.{}.name", column.name), message);
                    self.add(problem, self.column_view(&column.name).place("name"));
                }
                None => sources.push((&column.source, column)),
            }
        }
        if !job.columns.iter().any(|column| column.role == Role::Feature) && job.crosses.is_empty()
        {
            let problem = Problem::error("columns", "the job has no features")
                .help("add a column with a kind, such as age = { kind = \"number\" }");
            self.add(problem, self.root.place("columns"));
        }
    }

    fn kind_of_role(&mut self, column: &ColumnPart, path: &str, view: View<'_>) {
        let (expected, fits) = match column.role {
            Role::Feature => ("number, category or categories", column.kind != ColumnKind::Time),
            Role::Weight => ("number", column.kind == ColumnKind::Number),
            Role::Time => ("time", column.kind == ColumnKind::Time),
            Role::Label => {
                let kinds = [ColumnKind::Number, ColumnKind::Category];
                ("number or category", kinds.contains(&column.kind))
            }
            Role::Group => ("category or time", column.kind != ColumnKind::Number),
        };
        if !fits {
            let got = view.text("kind").unwrap_or_default();
            let message = format!("expected {expected} for this role, got {got}");
            self.add(Problem::error(format!("{path}.kind"), message), view.place("kind"));
        }
    }

    /// Fields that have no effect are errors: nothing in a job file is ignored.
    fn fields_of_kind(&mut self, column: &ColumnPart, path: &str, view: View<'_>) {
        let is = |kind: ColumnKind| column.kind == kind && column.role == Role::Feature;
        let ids = is(ColumnKind::Category) || is(ColumnKind::Categories);
        let embed = column.number.embed;
        let has_side = match self.job.model.kind {
            ModelKind::TwoTower => column.role == Role::Feature,
            ModelKind::Mf => ids,
            _ => false,
        };
        let rules: [(&[&str], bool, &str); 10] = [
            (&["transform", "embed"], is(ColumnKind::Number), "features of kind number"),
            (&["bins"], matches!(embed, Embed::Piecewise(_)), "embed = \"piecewise\""),
            (
                &["frequencies", "sigma"],
                matches!(embed, Embed::Periodic { .. }),
                "embed = \"periodic\"",
            ),
            (&["history_of"], is(ColumnKind::Categories), "features of kind categories"),
            (
                &["vocabulary", "buckets", "dim"],
                ids && column.history_of.is_none(),
                "features of kind category or categories that are no history",
            ),
            (&["rows"], is(ColumnKind::Category), "features of kind category"),
            (&["at_most", "pooling"], is(ColumnKind::Categories), "features of kind categories"),
            (&["separator"], column.kind == ColumnKind::Categories, "kind = \"categories\""),
            (&["side"], has_side, "categories of the model mf, and features of two_tower"),
            (
                &["positive", "at_least", "classes", "levels"],
                column.role == Role::Label,
                "role = \"label\"",
            ),
        ];
        for (fields, applies, to) in rules {
            for field in fields.iter().filter(|field| !applies && view.node(field).is_some()) {
                let problem =
                    Problem::error(format!("{path}.{field}"), format!("applies only to {to}"));
                self.add(problem.help("remove the field"), view.place(field));
            }
        }
        self.either_vocabulary_or_buckets(path, view);
        self.history(column, path, view);
    }

    /// A history has values of a category that is a feature, too.
    fn history(&mut self, column: &ColumnPart, path: &str, view: View<'_>) {
        let Some(name) = &column.history_of else { return };
        let (path, place) = (format!("{path}.history_of"), view.place("history_of"));
        self.known_column(&path, name, place, &[ColumnKind::Category]);
        let Some(other) = self.job.column(name) else { return };
        if other.role != Role::Feature {
            let message = format!("column '{name}' is not a feature");
            self.add(Problem::error(path, message), place);
        } else if other.category.rows.is_some() {
            let message = format!("column '{name}' has rows, so its values are not words");
            let problem = Problem::error(path, message);
            self.add(problem.help("give it a vocabulary or buckets instead of rows"), place);
        }
    }

    fn either_vocabulary_or_buckets(&mut self, path: &str, view: View<'_>) {
        let help =
            "hash values into buckets, look them up in a vocabulary, or take integers as rows";
        let ways = ["vocabulary", "buckets", "rows"];
        let mut given = ways.into_iter().filter(|way| view.node(way).is_some());
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            let message = format!("conflicts with {first}");
            let problem = Problem::error(format!("{path}.{second}"), message);
            self.add(problem.help(help), view.place(second));
        }
    }

    fn labels(&mut self) {
        let labels: Vec<&ColumnPart> =
            self.job.columns.iter().filter(|column| column.role == Role::Label).collect();
        let Some(label) = labels.first() else {
            if self.job.task == TaskKind::Retrieval {
                return;
            }
            let problem = Problem::error("columns", "no column has the role label")
                .help("add role = \"label\" to the column that the model predicts");
            return self.add(problem, self.root.place("columns"));
        };
        let is_mmoe = self.job.model.kind == ModelKind::Mmoe;
        for other in labels[1..].iter().filter(|_| !is_mmoe) {
            let message = format!("'{}' is the label already", label.name);
            let place = self.column_view(&other.name).place("role");
            let problem = Problem::error(format!("columns.{}.role", other.name), message);
            self.add(problem.help("the model mmoe has several labels"), place);
        }
        let count = if is_mmoe { labels.len() } else { 1 };
        for label in &labels[..count] {
            let view = self.column_view(&label.name);
            let path = format!("columns.{}", label.name);
            self.label_of_task(label, &path, view);
            if is_mmoe {
                self.label_of_mmoe(label, &path, view);
            }
        }
        let mut weights = self.job.columns.iter().filter(|column| column.role == Role::Weight);
        if let Some(second) = weights.nth(1) {
            let place = self.column_view(&second.name).place("role");
            let path = format!("columns.{}.role", second.name);
            self.add(Problem::error(path, "another column is the weight already"), place);
        }
    }

    /// Labels of mmoe are yes or no, and their names are columns of files.
    fn label_of_mmoe(&mut self, label: &ColumnPart, path: &str, view: View<'_>) {
        if view.node("levels").is_some() {
            let problem = Problem::error(format!("{path}.levels"), "does not apply to mmoe");
            self.add(problem.help("remove the field"), view.place("levels"));
        }
        let is_plain = |c: char| !c.is_control() && !"\",\\".contains(c);
        if !label.name.chars().all(is_plain) {
            let message = "the name of a label of mmoe has a comma, a quote, a backslash or a \
                           control character";
            let problem = Problem::error(path, message)
                .help("give it another name, and add name = \"..\" with that in the files");
            self.add(problem, label.at);
        }
    }

    fn label_of_task(&mut self, label: &ColumnPart, path: &str, view: View<'_>) {
        let task = self.job.task;
        let allowed: &[&str] = match task {
            TaskKind::Binary => &["positive", "at_least", "levels"],
            TaskKind::MultiClass => &["classes"],
            TaskKind::Regression => &["at_least"],
            TaskKind::Ranking | TaskKind::Retrieval => &["positive", "at_least"],
        };
        for field in ["positive", "at_least", "classes", "levels"] {
            if view.node(field).is_some() && !allowed.contains(&field) {
                let message = format!("does not apply to the task {}", task.name());
                self.add(Problem::error(format!("{path}.{field}"), message), view.place(field));
            }
        }
        let is_text = label.kind == ColumnKind::Category;
        // A ranking by yes or no has the rules of a binary task.
        let is_binary = task == TaskKind::Binary
            || task == TaskKind::Ranking && (is_text || view.node("positive").is_some());
        let problem = match task {
            _ if is_binary && is_text && label.label.positive_text.is_none() => Problem::error(
                format!("{path}.positive"),
                "a label of kind category needs the value that is 1",
            )
            .help("add positive = \"VALUE\""),
            _ if is_binary && label.label.positive_text.is_some() && !is_text => Problem::error(
                format!("{path}.positive"),
                "expected a number for a label of kind number",
            )
            .help("write positive = 1, or kind = \"category\""),
            _ if is_binary
                && label.label.at_least.is_some()
                && (label.label.positive_text.is_some()
                    || label.label.positive_number.is_some()) =>
            {
                Problem::error(format!("{path}.at_least"), "conflicts with positive")
            }
            _ if is_binary && is_text && label.label.at_least.is_some() => {
                Problem::error(format!("{path}.at_least"), "needs kind = \"number\"")
            }
            TaskKind::Binary if !label.label.levels.is_empty() => {
                return self.levels(label, path, view);
            }
            TaskKind::MultiClass if !is_text || label.label.classes.is_empty() => Problem::error(
                format!("{path}.classes"),
                "a multi_class task needs the classes",
            )
            .help(
                "add kind = \"category\" and classes = [\"A\", \"B\", ..], the values of the label",
            ),
            TaskKind::Regression if is_text => {
                Problem::error(format!("{path}.kind"), "a regression needs a label of kind number")
            }
            _ => return,
        };
        self.add(problem, view.at);
    }

    /// Levels are different numbers, and the label is 1 from one of them on.
    fn levels(&mut self, label: &ColumnPart, path: &str, view: View<'_>) {
        let levels = &label.label.levels;
        let lowest = levels.iter().copied().fold(f64::INFINITY, f64::min);
        let is_level = |least: f64| least > lowest && levels.contains(&least);
        let twice = (1..levels.len()).find(|at| levels[..*at].contains(&levels[*at]));
        let message = match (label.label.at_least, twice) {
            (None, _) => "needs at_least: numbers from this on are 1".to_string(),
            (Some(_), Some(at)) => format!("{} is named twice", levels[at]),
            (Some(least), _) if !is_level(least) => {
                format!("expected at_least among the levels above the lowest one, got {least}")
            }
            _ => return,
        };
        self.add(Problem::error(format!("{path}.levels"), message), view.place("levels"));
    }

    fn crosses(&mut self) {
        let job = self.job;
        for cross in &job.crosses {
            let path = format!("crosses.{}", cross.name);
            if job.column(&cross.name).is_some() {
                let problem = Problem::error(&path, "a column has this name")
                    .help("give the cross another name");
                self.add(problem, cross.at);
            }
            for (index, name) in cross.columns.iter().enumerate() {
                let path = format!("{path}[{index}]");
                if cross.columns[..index].contains(name) {
                    self.add(
                        Problem::error(path, format!("column '{name}' is named twice")),
                        cross.at,
                    );
                } else {
                    self.known_column(&path, name, cross.at, &[ColumnKind::Category]);
                }
            }
            if let Some(node) = self.root.table("crosses").node(&cross.name) {
                self.either_vocabulary_or_buckets(&path, View::of(node));
            }
        }
    }

    /// Checks that a name is that of a column of one of these kinds.
    fn known_column(&mut self, path: &str, name: &str, at: Option<Place>, kinds: &[ColumnKind]) {
        let Some(column) = self.job.column(name) else {
            let names = self.job.columns.iter().map(|column| column.name.as_str());
            let near = text::did_you_mean(name, names);
            let problem = Problem::error(path, format!("no column '{name}'{near}"))
                .help("name a column of [columns] that is not ignored");
            return self.add(problem, at);
        };
        if !kinds.contains(&column.kind) {
            let expected: Vec<&str> = kinds.iter().map(|kind| name_of_kind(*kind)).collect();
            let (expected, got) = (expected.join(" or "), name_of_kind(column.kind));
            let message = format!("expected a column of kind {expected}, got {got} ('{name}')");
            self.add(Problem::error(path, message), at);
        }
    }

    fn slices(&mut self) {
        let view = self.root.table("evaluation");
        let job = self.job;
        for (index, name) in job.evaluation.slices.iter().enumerate() {
            let path = format!("evaluation.slices[{index}]");
            self.known_column(&path, name, view.place("slices"), &[ColumnKind::Category]);
        }
        let goals: &[&str] = match job.task {
            TaskKind::Binary => &["auc", "loss"],
            TaskKind::MultiClass => &["loss", "accuracy"],
            TaskKind::Regression
                if job.label().is_some_and(|label| label.label.at_least.is_some()) =>
            {
                &["loss", "rmse", "auc"]
            }
            TaskKind::Regression => &["loss", "rmse"],
            TaskKind::Ranking => &["loss", "ndcg"],
            TaskKind::Retrieval => &["loss"],
        };
        if !goals.contains(&job.goal()) {
            let (got, task) = (job.goal(), job.task.name());
            let message =
                format!("expected {} for the task {task}, got '{got}'", goals.join(" or "));
            self.add(Problem::error("evaluation.goal", message), view.place("goal"));
        }
    }

    fn ranking(&mut self) {
        let job = self.job;
        let (task, evaluation) = (self.root.table("task"), self.root.table("evaluation"));
        let has_pairs = matches!(job.task, TaskKind::Ranking | TaskKind::Retrieval);
        self.negatives();
        if has_pairs && job.model.negatives.is_none() && job.train.batch > BATCH_OF_PAIRS_MAX {
            let view = self.root.table("train");
            let message =
                format!("expected at most {BATCH_OF_PAIRS_MAX} rows, which are compared in pairs");
            self.add(Problem::error("train.batch", message), view.place("batch"));
        }
        if job.task != TaskKind::Ranking {
            let fields =
                [("task", task, "group"), ("task", task, "loss"), ("evaluation", evaluation, "at")];
            for (table, view, field) in fields {
                if view.node(field).is_some() && !(field == "at" && has_pairs) {
                    let path = format!("{table}.{field}");
                    let problem = Problem::error(path, "applies only to the task ranking");
                    self.add(problem.help("remove the field"), view.place(field));
                }
            }
            return;
        }
        match &job.ranking.group {
            Some(name) => {
                let place = task.place("group");
                self.known_column("task.group", name, place, &[ColumnKind::Category]);
            }
            None => {
                let problem =
                    Problem::error("task.group", "a ranking needs the column of its groups")
                        .help("add group = \"NAME\", such as the column of the query or the user");
                self.add(problem, task.at);
            }
        }
    }

    /// Items that are drawn for a retrieval.
    fn negatives(&mut self) {
        let view = self.root.table("model");
        let job = self.job;
        if view.node("negatives_power").is_some() && job.model.negatives.is_none() {
            let problem = Problem::error("model.negatives_power", "needs model.negatives");
            self.add(problem, view.place("negatives_power"));
        }
        let Some(count) = job.model.negatives else { return };
        let place = view.place("negatives");
        if job.task != TaskKind::Retrieval {
            let problem = Problem::error("model.negatives", "applies only to the task retrieval");
            self.add(problem.help("remove the field"), place);
        } else if job.train.batch.saturating_mul(count) > BATCH_OF_PAIRS_MAX.pow(2) {
            let message = format!(
                "expected at most {} products of the batch's rows and these items, got {} x \
                 {count}",
                BATCH_OF_PAIRS_MAX.pow(2),
                job.train.batch
            );
            let problem = Problem::error("model.negatives", message);
            self.add(problem.help("take fewer items, or a smaller train.batch"), place);
        }
    }

    fn splits(&mut self) {
        let data = self.root.table("data");
        for name in ["validation", "test"] {
            let Some(view) = data.maybe_table(name) else { continue };
            self.split(&format!("data.{name}"), view, name == "validation");
        }
        let share = |split: &Option<Split>| match split {
            Some(
                Split::Random(share) | Split::Hash { share, .. } | Split::Newest { share, .. },
            ) => *share,
            _ => 0.0,
        };
        let taken = share(&self.job.data.test) + share(&self.job.data.validation);
        if taken >= 1.0 {
            let message =
                format!("validation and test take all rows: their shares add up to {taken}");
            self.add(Problem::error("data", message), data.at);
        }
        if self.job.data.validation.is_none() {
            let evaluation = self.root.table("evaluation");
            let given = [
                ("train.early_stop", self.root.table("train"), "early_stop"),
                ("evaluation.every", evaluation, "every"),
                ("evaluation.goal", evaluation, "goal"),
            ];
            for (path, view, field) in given {
                if view.node(field).is_some() {
                    let problem = Problem::error(path, "needs validation rows")
                        .help("set data.validation, such as { share = 0.1 }");
                    self.add(problem, view.place(field));
                }
            }
        }
    }

    fn split(&mut self, path: &str, view: View<'_>, may_be_none: bool) {
        let has = |name: &str| view.node(name).is_some();
        let ways = ["files", "hash", "column"].iter().filter(|name| has(name)).count();
        if ways > 1 {
            let problem = Problem::error(path, "files, hash and column exclude each other");
            return self.add(problem, view.at);
        }
        let missing = if has("files") {
            None
        } else if has("column") {
            (!has("after") && !has("share")).then_some("share or after")
        } else {
            (!has("share")).then_some("share")
        };
        if let Some(missing) = missing {
            let problem = Problem::error(path, format!("needs {missing}"));
            return self.add(problem.help("for example { share = 0.2 }"), view.at);
        }
        if has("share") && (has("files") || has("after")) {
            let message = "has no effect beside files and after";
            self.add(Problem::error(format!("{path}.share"), message), view.place("share"));
        }
        if has("after") && !has("column") {
            let problem = Problem::error(format!("{path}.after"), "needs the time column")
                .help("add column = \"NAME\"");
            self.add(problem, view.place("after"));
        } else if has("after") && crate::job::split(view).is_none() {
            let message = "expected a time: seconds since 1970, or a date such as \"2024-03-01\"";
            self.add(Problem::error(format!("{path}.after"), message), view.place("after"));
        }
        if let Some(share) = view.number("share")
            && (share >= 1.0 || share == 0.0 && !may_be_none)
        {
            let message = format!("expected a share above 0 and below 1, got {share}");
            self.add(Problem::error(format!("{path}.share"), message), view.place("share"));
        }
        for (field, kind) in [("hash", ColumnKind::Category), ("column", ColumnKind::Time)] {
            if let Some(name) = view.text(field) {
                self.known_column(&format!("{path}.{field}"), name, view.place(field), &[kind]);
            }
        }
    }

    fn data(&mut self) {
        let view = self.root.table("data");
        if let Some(text) = view.text("memory")
            && bytes_of(text).is_none()
        {
            let message = format!("expected an amount of memory such as \"4GiB\", got '{text}'");
            self.add(Problem::error("data.memory", message), view.place("memory"));
        }
        if let Some(text) = view.text("separator") {
            let is_one = text.len() == 1 && !"\"\r\n".contains(text);
            if !is_one {
                let message = format!("expected one ASCII character, got '{text}'");
                self.add(Problem::error("data.separator", message), view.place("separator"));
            }
        }
        self.object_names();
        if view.node("window").is_some()
            && view.count("window").is_some_and(|rows| rows > WINDOW_MAX)
        {
            let message = format!("expected at most {WINDOW_MAX} rows");
            self.add(Problem::error("data.window", message), view.place("window"));
        }
    }

    /// Data may be in object stores; other files and folders may not.
    fn object_names(&mut self) {
        let data = self.root.table("data");
        let lists = [
            ("data.train", data.node("train")),
            ("data.validation.files", data.table("validation").node("files")),
            ("data.test.files", data.table("test").node("files")),
        ];
        let names: Vec<(&str, Place, &str)> = lists
            .into_iter()
            .flat_map(|(path, node)| {
                node.map(placed_texts)
                    .unwrap_or_default()
                    .into_iter()
                    .map(move |(place, name)| (path, place, name))
            })
            .collect();
        for (path, place, name) in &names {
            let fault = fault_of_object(name)
                .map(|(message, help)| (format!("{message}, got '{name}'"), help));
            if let Some((message, help)) = fault.or_else(|| made::fault_of(name)) {
                self.add(Problem::error(*path, message).help(help), Some(*place));
            }
        }
        self.made_names(&names);
        let local = [
            ("data.bad_rows.keep", data.table("bad_rows"), "keep"),
            ("train.warm_start", self.root.table("train"), "warm_start"),
            ("strategy.file", self.root.table("strategy"), "file"),
            ("output.folder", self.root.table("output"), "folder"),
        ];
        for (path, view, field) in local {
            if let Some(name) = view.text(field).filter(|name| is_object(name)) {
                let message = format!("cannot be in an object store, got '{name}'");
                self.add(Problem::error(path, message).help(LOCAL_HELP), view.place(field));
            }
        }
    }

    /// Generated rows are not mixed with files, and each is of one part only.
    fn made_names(&mut self, names: &[(&str, Place, &str)]) {
        let is_made = |(.., name): &&(&str, Place, &str)| made::is_made(name);
        let Some((_, _, first)) = names.iter().find(is_made) else { return };
        for (path, place, name) in names.iter().filter(|name| !is_made(name)) {
            let message = format!("'{name}' is a file, and '{first}' generated rows");
            let problem = Problem::error(*path, message);
            self.add(problem.help("take the same kind of rows for all parts"), Some(*place));
        }
        for (at, (path, place, name)) in names.iter().enumerate() {
            let Ok(rows) = made::range_of(name) else { continue };
            let has_some = |(.., other): &&(&str, Place, &str)| {
                made::range_of(other).is_ok_and(|it| it.start < rows.end && rows.start < it.end)
            };
            if let Some((_, _, other)) = names[..at].iter().find(has_some) {
                let message = format!("'{name}' has rows of '{other}'");
                let problem = Problem::error(*path, message);
                self.add(problem.help("name other rows, such as later ones"), Some(*place));
            }
        }
        let data = self.root.table("data");
        for field in ["format", "separator", "missing", "bad_rows"] {
            if data.node(field).is_some() {
                let path = format!("data.{field}");
                let problem = Problem::error(path, "has no effect on generated rows");
                self.add(problem.help("remove the field"), data.place(field));
            }
        }
    }

    fn model(&mut self) {
        let view = self.root.table("model");
        let job = self.job;
        if job.model.kind != ModelKind::DcnV2 {
            for field in ["cross_layers", "rank"] {
                if view.node(field).is_some() {
                    let problem = Problem::error(
                        format!("model.{field}"),
                        "applies only to kind = \"dcn_v2\"",
                    );
                    self.add(problem.help("remove the field"), view.place(field));
                }
            }
        }
        self.same_widths();
        match job.model.kind {
            ModelKind::Mf => {
                self.sides("mf");
                self.not_towers();
            }
            ModelKind::TwoTower => {
                self.sides("two_tower");
                self.towers();
            }
            _ => self.not_towers(),
        }
        let has_history = job.columns.iter().any(|column| column.history_of.is_some());
        if job.model.kind == ModelKind::Din && !has_history {
            let problem = Problem::error("model.kind", "din needs a history")
                .help("add history_of = \"ITEM\" to a column of kind categories");
            self.add(problem, view.place("kind"));
        }
        if job.model.kind != ModelKind::Din && view.node("attention").is_some() {
            let problem = Problem::error("model.attention", "applies only to kind = \"din\"");
            self.add(problem.help("remove the field"), view.place("attention"));
        }
        self.experts();
        let deep = ["dropout", "input_dropout", "norm", "activation"];
        if job.model.hidden.is_empty() {
            for field in deep.iter().filter(|field| view.node(field).is_some()) {
                let problem = Problem::error(format!("model.{field}"), "needs hidden layers");
                self.add(problem, view.place(field));
            }
        }
    }

    /// The fields of mmoe.
    fn experts(&mut self) {
        let view = self.root.table("model");
        if self.job.model.kind != ModelKind::Mmoe {
            for field in ["experts", "tower"].iter().filter(|field| view.node(field).is_some()) {
                let path = format!("model.{field}");
                let problem = Problem::error(path, "applies only to kind = \"mmoe\"");
                self.add(problem.help("remove the field"), view.place(field));
            }
            return;
        }
        if self.job.task != TaskKind::Binary {
            let problem = Problem::error("task.kind", "mmoe has the task binary only")
                .help("use another model, such as dcn_v2");
            self.add(problem, self.root.table("task").place("kind"));
        }
        if self.job.model.hidden.is_empty() {
            let problem = Problem::error("model.hidden", "the experts of mmoe need hidden layers")
                .help("set model.hidden, such as [64]");
            self.add(problem, view.place("hidden"));
        }
    }

    /// Some models need embeddings of one width.
    fn same_widths(&mut self) {
        let job = self.job;
        let needs_same_width = match job.model.kind {
            ModelKind::DeepFm => Some("deepfm"),
            ModelKind::Mf => Some("mf"),
            ModelKind::TwoTower if job.model.hidden.is_empty() => Some("two_tower without layers"),
            _ => None,
        };
        if let Some(kind) = needs_same_width {
            let columns = job
                .columns
                .iter()
                .map(|it| (format!("columns.{}.dim", it.name), &it.category, it.at));
            let crosses = job
                .crosses
                .iter()
                .map(|it| (format!("crosses.{}.dim", it.name), &it.category, it.at));
            for (path, category, at) in columns.chain(crosses) {
                if category.dim.is_some_and(|dim| dim != job.model.dim) {
                    let problem = Problem::error(
                        path,
                        format!(
                            "{kind} needs the same width for all embeddings: expected {}",
                            job.model.dim
                        ),
                    )
                    .help("set model.dim and remove dim here");
                    self.add(problem, at);
                }
            }
        }
    }

    /// All features of a model with two towers are in one of them.
    fn towers(&mut self) {
        let job = self.job;
        let columns = job.columns.iter().filter(|column| column.role == Role::Feature);
        let columns = columns.map(|it| ("columns", &it.name, it.at));
        let crosses = job.crosses.iter().map(|it| ("crosses", &it.name, it.at));
        for (table, name, at) in columns.chain(crosses) {
            if job.side_of(name).is_none() {
                let path = format!("{table}.{name}");
                let problem = Problem::error(path, "two_tower needs the side of every feature");
                let help =
                    "add side = \"user\" or side = \"item\"; a cross needs columns of one side";
                self.add(problem.help(help), at);
            }
        }
        if job.task == TaskKind::MultiClass {
            let problem = Problem::error("task.kind", "two_tower has one score for each row");
            let problem = problem.help("use another model, such as dcn_v2");
            self.add(problem, self.root.table("task").place("kind"));
        }
        let item = job.id_of(Side::Item).filter(|_| job.task == TaskKind::Retrieval);
        for field in ["buckets", "rows"] {
            let Some(item) = item else { break };
            let view = self.column_view(&item.name);
            if view.node(field).is_none() {
                continue;
            }
            let path = format!("columns.{}.{field}", item.name);
            let problem = Problem::error(path, "a retrieval needs a vocabulary of its items");
            let help = format!("remove {field}; vocabulary = {{ min_count = 2 }} keeps it small");
            self.add(problem.help(help), view.place(field));
        }
        if !job.model.hidden.is_empty() {
            return;
        }
        for column in job.columns.iter().filter(|it| it.kind == ColumnKind::Number) {
            if column.role == Role::Feature {
                let path = format!("columns.{}", column.name);
                let problem =
                    Problem::error(path, "two_tower without hidden layers has no numbers")
                        .help("set model.hidden, such as [64]");
                self.add(problem, column.at);
            }
        }
    }

    fn not_towers(&mut self) {
        let view = self.root.table("model");
        for field in ["similarity", "temperature"] {
            if view.node(field).is_some() {
                let path = format!("model.{field}");
                let problem = Problem::error(path, "applies only to kind = \"two_tower\"");
                self.add(problem.help("remove the field"), view.place(field));
            }
        }
        if self.job.task == TaskKind::Retrieval {
            let problem = Problem::error("model.kind", "a retrieval needs kind = \"two_tower\"");
            self.add(problem, view.place("kind").or(self.root.table("task").place("kind")));
        }
    }

    /// A model with two sides needs a category of each.
    fn sides(&mut self, kind: &str) {
        let job = self.job;
        for (side, name) in [(Side::User, "user"), (Side::Item, "item")] {
            let is = |it: &&ColumnPart| it.side == Some(side) && it.kind != ColumnKind::Number;
            if job.columns.iter().any(|column| is(&column)) {
                continue;
            }
            let message = format!("{kind} needs a category column that describes the {name}");
            let problem = Problem::error("columns", message)
                .help(format!("add side = \"{name}\" to the column, such as {name}_id"));
            self.add(problem, self.root.place("columns"));
        }
        for column in &job.columns {
            if job.model.hidden.is_empty()
                && job.model.kind == ModelKind::Mf
                && column.number.embed != Embed::None
            {
                let path = format!("columns.{}.embed", column.name);
                let message = format!("{kind} without hidden layers takes numbers as they are");
                let problem = Problem::error(path, message)
                    .help("remove the field, or set model.hidden, such as [64]");
                self.add(problem, self.column_view(&column.name).place("embed"));
            }
        }
    }

    fn train(&mut self) {
        let view = self.root.table("train").table("optimizer");
        let optimizer = &self.job.train.optimizer;
        if view.node("momentum").is_some() && optimizer.kind != "momentum" {
            let problem =
                Problem::error("train.optimizer.momentum", "applies only to kind = \"momentum\"");
            self.add(problem.help("remove the field"), view.place("momentum"));
        }
        let tables = self.root.table("tables");
        let decays = [
            ("weight_decay", self.job.tables.weight_decay),
            ("linear_decay", self.job.tables.linear_decay.unwrap_or(0.0)),
        ];
        for (field, decay) in decays {
            if decay > 0.0 && tables.text("sparse") == Some("yes") {
                let path = format!("tables.{field}");
                let problem = Problem::error(path, "conflicts with sparse = \"yes\"")
                    .help("regularization changes all rows in each step: set sparse = \"no\"");
                self.add(problem, tables.place(field));
            }
        }
        if tables.node("linear_decay").is_some() && !crate::model::has_linear(self.job) {
            let problem = Problem::error(
                "tables.linear_decay",
                "applies only to the models wide_deep, deepfm and mf",
            );
            self.add(problem.help("remove the field"), tables.place("linear_decay"));
        }
    }
}

/// Rows of a window are in memory at once.
const WINDOW_MAX: u64 = 1 << 28;

/// A matrix of all pairs of a batch takes 256 MB.
const BATCH_OF_PAIRS_MAX: usize = 8192;

fn name_of_kind(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Number => "number",
        ColumnKind::Category => "category",
        ColumnKind::Categories => "categories",
        ColumnKind::Time => "time",
    }
}
