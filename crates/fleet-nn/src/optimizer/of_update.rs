//! The rule of an existing update op.

use super::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, Lamb, LarsMomentum, Momentum, OptimizerDesc, RmsProp,
    Sgd,
};
use fleet_base::{Error, Result};
use fleet_ir::{Op, VarId};

impl OptimizerDesc {
    /// Returns the rule of an update, with a learning rate of 0. Lists of names, such as those of
    /// parameters without decay, are not known from one update. `start` returns the value with
    /// which the startup program fills a variable.
    pub fn of_update(op: &Op, start: impl FnOnce(VarId) -> Result<f64>) -> Result<OptimizerDesc> {
        let number = |name: &str| op.attr_float(name);
        let on = |name: &str| op.attr_bool(name);
        let (beta1, beta2) = (|| number("beta1"), || number("beta2"));
        let epsilon = || number("epsilon");
        Ok(match op.name() {
            "sgd" => Sgd::new(0.0).into(),
            "momentum" => Momentum::new(0.0, number("mu")).use_nesterov(on("use_nesterov")).into(),
            "adagrad" => {
                let start = start(op.input("Moment")[0])?;
                Adagrad::new(0.0).epsilon(epsilon()).initial_accumulator_value(start).into()
            }
            "adam" => {
                let rule = Adam::new(0.0).beta1(beta1()).beta2(beta2()).epsilon(epsilon());
                rule.lazy_mode(on("lazy_mode")).into()
            }
            "adamw" => {
                let rule = AdamW::new(0.0).beta1(beta1()).beta2(beta2()).epsilon(epsilon());
                rule.lazy_mode(on("lazy_mode")).coeff(number("coeff")).into()
            }
            "adamax" => Adamax::new(0.0).beta1(beta1()).beta2(beta2()).epsilon(epsilon()).into(),
            "adadelta" => Adadelta::new(0.0).rho(number("rho")).epsilon(epsilon()).into(),
            "rmsprop" => {
                let rule = RmsProp::new(0.0).rho(number("decay")).epsilon(epsilon());
                rule.momentum(number("momentum")).centered(on("centered")).into()
            }
            "lamb" => Lamb::new(0.0).beta1(beta1()).beta2(beta2()).epsilon(epsilon()).into(),
            "lars_momentum" => LarsMomentum::new(0.0, number("mu")).epsilon(epsilon()).into(),
            other => {
                return Err(Error::unsupported("an update of an unknown rule")
                    .expected("an optimizer of Fleet")
                    .got(other));
            }
        })
    }
}
