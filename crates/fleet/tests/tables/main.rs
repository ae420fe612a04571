//! What programs can ask of the tables of parameter servers, held to closed forms.

mod best_area;
mod click;
mod dc_asgd;
mod guide;
mod transpiler;
