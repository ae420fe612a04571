//! What programs can ask of the tables of parameter servers, held to closed forms.

mod click;
mod dc_asgd;
mod transpiler;
