//! Names of parameters that strategies exclude from weight decay.

use fleet_config::Problem;
use fleet_ir::Program;

/// Reports the names of the list at `path` that no parameter's name contains.
pub fn unmatched(program: &Program, path: &str, names: &[String], problems: &mut Vec<Problem>) {
    // Running statistics are parameters too, but never have weight decay.
    let trained = program.parameters().filter(|(_, var)| !var.stop_gradient);
    let mut parameters: Vec<&str> = trained.map(|(_, var)| var.name.as_str()).collect();
    parameters.sort_unstable();
    for (at, name) in names.iter().enumerate() {
        if !parameters.iter().any(|parameter| parameter.contains(name.as_str())) {
            let message = format!("no parameter has a name that contains '{name}'");
            let examples = parameters.iter().take(3).copied().collect::<Vec<_>>().join(", ");
            let problem = Problem::warning(format!("{path}[{at}]"), message)
                .why("weight decay applies to every parameter")
                .help(format!("use a part of a name, such as {examples}"));
            problems.push(problem);
        }
    }
}
