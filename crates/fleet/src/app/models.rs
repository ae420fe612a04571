//! Programs by name: a file, the folder of a saved model, or a network that the binary contains.

use fleet_base::{Error, Result, text};
use fleet_format::{Form, load_program};
use fleet_ir::{Program, VarId};
use fleet_nn::models::{
    BertConfig, DeepFmConfig, GptConfig, ResNetConfig, VggConfig, WideDeepConfig, Word2VecConfig,
    bert_mlm, deepfm, gpt, lenet, resnet, vgg, wide_deep, word2vec,
};
use fleet_nn::{Net, Programs, Var};
use fleet_ops::{Registry, verify::errors};
use std::path::Path;

/// Writes a network and returns its loss.
pub type Network = for<'n> fn(&'n Net) -> Result<Var<'n>>;

/// Networks that commands take as `model:NAME`: those of the application, then the zoo.
///
/// `model:NAME` is the main program of the network, a forward pass, and `model:NAME/startup` the
/// program that initializes its parameters.
#[derive(Clone, Debug, Default)]
pub struct Models {
    own: Vec<(&'static str, Network)>,
}

impl Models {
    /// Adds a network.
    pub(super) fn add(&mut self, name: &'static str, network: Network) {
        self.own.push((name, network));
    }

    /// Builds the network that `model:NAME` names, and returns its loss too; `None` if `given` is
    /// the path of a file.
    pub(super) fn build(&self, given: &str) -> Result<Option<(Programs, VarId)>> {
        let Some(name) = given.strip_prefix(PREFIX) else { return Ok(None) };
        let net = Net::new();
        let own = self.own.iter().find(|(known, _)| *known == name);
        let loss = match own.map(|(_, network)| *network).or_else(|| zoo(name)) {
            Some(network) => network(&net)?.id(),
            None => return Err(self.unknown(name)),
        };
        Ok(Some((net.finish()?, loss)))
    }

    fn unknown(&self, name: &str) -> Error {
        let own = self.own.iter().map(|(name, _)| *name);
        let known: Vec<&str> = own.chain(ZOO.iter().map(|(name, _)| *name)).collect();
        let hint = text::did_you_mean(name, known.iter().copied());
        Error::invalid(format!("unknown model '{name}'{hint}"))
            .expected(format!("one of {}", known.join(", ")))
    }

    /// Returns a program, and the form of its file if it is from one.
    pub(super) fn read(&self, program: &Path) -> Result<(Program, Option<Form>)> {
        let (main, part) = match program.to_str().map(|name| (name, name.rsplit_once('/'))) {
            Some((name, Some((model, "startup")))) if name.starts_with(PREFIX) => {
                (model, "startup")
            }
            Some((name, _)) => (name, ""),
            None => ("", ""),
        };
        match (self.build(main)?, part) {
            (Some((programs, _)), "startup") => Ok((programs.startup, None)),
            (Some((programs, _)), _) => Ok((programs.main, None)),
            (None, _) => {
                let (program, form) = load_program(program, Registry::standard())?;
                Ok((program, Some(form)))
            }
        }
    }

    /// Returns a verified program.
    pub(super) fn load(&self, program: &Path) -> Result<Program> {
        let (loaded, _) = self.read(program)?;
        fleet_ir::all_in_one(errors(&loaded, Registry::standard()))
            .map_err(|error| error.at(program.display()))?;
        Ok(loaded)
    }

    /// Returns the startup program of `model:NAME`; `None` for a file.
    pub(super) fn startup(&self, program: &Path) -> Result<Option<Program>> {
        let built = self.build(program.to_str().unwrap_or_default())?;
        Ok(built.map(|(programs, _)| programs.startup))
    }
}

/// Prefix of the names of networks. A file of such a name is written `./model:NAME`.
const PREFIX: &str = "model:";

fn zoo(name: &str) -> Option<Network> {
    ZOO.iter().find(|(known, _)| *known == name).map(|(_, network)| *network)
}

/// The networks of `fleet::nn::models`, in their usual sizes.
const ZOO: [(&str, Network); 9] = [
    ("lenet", |net| Ok(lenet(net, 10).loss)),
    ("resnet18", |net| Ok(resnet(net, &ResNetConfig::new(18)).loss)),
    ("resnet50", |net| Ok(resnet(net, &ResNetConfig::new(50)).loss)),
    ("vgg16", |net| Ok(vgg(net, &VggConfig::new(16)).loss)),
    ("bert", |net| Ok(bert_mlm(net, &BertConfig::base()).loss)),
    ("gpt", |net| Ok(gpt(net, &GptConfig::small()).loss)),
    ("wide_deep", |net| Ok(wide_deep(net, &WideDeepConfig::criteo()).loss)),
    ("deepfm", |net| Ok(deepfm(net, &DeepFmConfig::criteo()).loss)),
    ("word2vec", |net| Ok(word2vec(net, &Word2VecConfig::new(10_000)).loss)),
];
