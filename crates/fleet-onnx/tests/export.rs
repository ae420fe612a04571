//! Structure of exported graphs, and errors. `python/tests/test_onnx.py` runs the files.

use fleet_base::{Error, Result};
use fleet_ir::Program;
use fleet_nn::models::{
    BertConfig, DeepFmConfig, GptConfig, ResNetConfig, VggConfig, WideDeepConfig, Word2VecConfig,
    bert_mlm, bert_tokens, deepfm, gpt, lenet, resnet, vgg, wide_deep, word2vec,
};
use fleet_nn::prelude::*;
use fleet_onnx::proto::{GraphProto, ModelProto, ValueInfoProto};
use fleet_onnx::{OnnxOptions, TableRows, Values, export};
use fleet_ops::Registry;
use fleet_tensor::Tensor;
use prost::Message;

/// Zeros for every variable of a program, and a table of two rows.
struct Zeros<'a>(&'a Program);

impl Values for Zeros<'_> {
    fn variable(&mut self, name: &str) -> Result<Tensor> {
        let var = self.0.var(self.0.var_named(name)?);
        Tensor::zeros(var.dtype, var.shape)
    }

    fn table(&mut self, id: u32, row_count_max: u64) -> Result<TableRows> {
        if id != 3 || row_count_max < 2 {
            return Err(Error::invalid(format!("no table {id}")));
        }
        let rows = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
        Ok(TableRows { ids: vec![i64::MAX, -5], rows })
    }
}

fn export_as(program: &Program, targets: &[&str], options: &OnnxOptions) -> Result<ModelProto> {
    let model = export(program, targets, &mut Zeros(program), options)?;
    let bytes = model.to_bytes()?;
    assert_eq!(bytes.len() as u64, model.byte_len());
    let decoded = ModelProto::decode(&bytes[..]);
    decoded.map_err(|error| Error::internal(format!("a written file is malformed: {error}")))
}

fn graph_of(program: &Program, targets: &[&str]) -> Result<GraphProto> {
    Ok(export_as(program, targets, &OnnxOptions::default())?.graph.unwrap())
}

fn parse(text: &str) -> Program {
    Program::parse(&format!("fleet program 1\nblock0 {{\n{text}\n}}"), Registry::standard())
        .unwrap()
}

/// Formats an input or output: `x[batch, 3]`.
fn shown(info: &ValueInfoProto) -> String {
    let shape = info.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().shape.as_ref();
    let dims: Vec<String> = shape
        .unwrap()
        .dim
        .iter()
        .map(|dim| match (&dim.dim_value, &dim.dim_param) {
            (Some(size), _) => size.to_string(),
            (None, Some(name)) => name.clone(),
            (None, None) => "?".into(),
        })
        .collect();
    format!("{}[{}]", info.name, dims.join(", "))
}

fn names(infos: &[ValueInfoProto]) -> Vec<String> {
    infos.iter().map(shown).collect()
}

fn ops(graph: &GraphProto) -> Vec<&str> {
    graph.node.iter().map(|node| &node.op_type[..]).collect()
}

#[test]
fn a_graph_has_the_names_of_the_program() {
    let net = Net::new();
    let logits = lenet(&net, 10).logits.name();
    let graph = graph_of(&net.build().unwrap().main, &[&logits]).unwrap();
    assert_eq!(names(&graph.input), ["x[batch, 1, 28, 28]"]);
    assert_eq!(names(&graph.output), [format!("{logits}[batch, 10]")]);
    let kinds = ops(&graph);
    for (op, count) in [("Conv", 2), ("Relu", 4), ("MaxPool", 2), ("MatMul", 3), ("Softmax", 0)] {
        assert_eq!(kinds.iter().filter(|kind| **kind == op).count(), count, "{op}: {kinds:?}");
    }
    let weight = graph.initializer.iter().find(|it| it.name == "fc_0.w_0").unwrap();
    assert_eq!((&weight.dims[..], weight.data_type), (&[400, 120][..], 1));
    assert_eq!(weight.raw_data.as_ref().unwrap().len(), 4 * 400 * 120);
}

/// Builds a network of the zoo, and returns the results to export.
type Build = fn(&Net) -> Vec<String>;

fn zoo() -> Vec<(&'static str, Build)> {
    const BERT: fn() -> BertConfig = || BertConfig {
        vocabulary: 20,
        hidden: 8,
        layers: 2,
        heads: 2,
        ffn: 16,
        length: 6,
        positions: 9,
        ..BertConfig::base()
    };
    vec![
        ("lenet", |net| {
            let model = lenet(net, 10);
            vec![model.logits.name(), model.loss.name(), model.acc5.name()]
        }),
        ("resnet50", |net| {
            let config = ResNetConfig { classes: 10, size: 32, ..ResNetConfig::new(50) };
            vec![resnet(net, &config).loss.name()]
        }),
        ("vgg", |net| {
            let config = VggConfig { classes: 10, size: 32, hidden: 8, ..VggConfig::new(11) };
            vec![vgg(net, &config).logits.name()]
        }),
        ("wide_deep", |net| {
            let config = WideDeepConfig { vocabulary: 50, ..WideDeepConfig::criteo() };
            vec![wide_deep(net, &config).prediction.name()]
        }),
        ("deepfm", |net| {
            let config = DeepFmConfig { vocabulary: 50, ..DeepFmConfig::criteo() };
            let model = deepfm(net, &config);
            vec![model.prediction.name(), model.loss.name()]
        }),
        ("word2vec", |net| {
            let model = word2vec(net, &Word2VecConfig { width: 4, ..Word2VecConfig::new(50) });
            vec![model.logits.name(), model.loss.name()]
        }),
        ("bert", |net| vec![bert_mlm(net, &BERT()).logits.name()]),
        ("bert_tokens", |net| vec![bert_tokens(net, &BERT(), 3).logits.name()]),
        ("gpt", |net| {
            let config = GptConfig {
                vocabulary: 20,
                hidden: 8,
                layers: 2,
                heads: 2,
                ffn: 16,
                length: 6,
                ..GptConfig::small()
            };
            vec![gpt(net, &config).logits.name()]
        }),
    ]
}

#[test]
fn every_model_exports_in_every_op_set() {
    for (name, build) in zoo() {
        let net = Net::new();
        let targets = build(&net);
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let main = net.build().unwrap().main;
        for opset in OnnxOptions::OPSETS {
            let options = OnnxOptions { opset, ..OnnxOptions::default() };
            let model = export_as(&main, &targets, &options).unwrap();
            assert_eq!(model.opset_import[0].version, opset, "{name}");
            let graph = model.graph.unwrap();
            let outputs: Vec<&str> = graph.output.iter().map(|info| &info.name[..]).collect();
            assert_eq!(outputs, targets, "{name}");
            check_order(&graph);
        }
    }
}

/// Checks that every node reads what is written before, and that no name is written twice.
fn check_order(graph: &GraphProto) {
    let constants = graph.initializer.iter().map(|it| &it.name);
    let mut known: std::collections::HashSet<&String> =
        graph.input.iter().map(|it| &it.name).chain(constants).collect();
    for node in &graph.node {
        assert!(node.input.iter().all(|name| name.is_empty() || known.contains(name)), "{node:?}");
        assert!(node.output.iter().all(|name| known.insert(name)), "{node:?}");
    }
    assert!(graph.output.iter().all(|it| known.contains(&it.name)));
}

#[test]
fn equal_unknown_dimensions_have_one_name() {
    let check = |text: &str, inputs: &[&str], output: &str| {
        let graph = graph_of(&parse(text), &["out"]).unwrap();
        assert_eq!(names(&graph.input), inputs);
        assert_eq!(names(&graph.output), [output]);
    };
    check(
        "%x: f32[-1, 3] data
         %y: f32[-1, 3] data
         %out: f32[-1, 3]
         (Out: %out) = elementwise_add(X: %x, Y: %y)",
        &["x[batch, 3]", "y[batch, 3]"],
        "out[batch, 3]",
    );
    // Rows that an index picks are as many as the index has numbers.
    check(
        "%x: f32[-1, 3] data
         %i: i64[-1] data
         %out: f32[-1, 3]
         (Out: %out) = gather(X: %x, Index: %i)",
        &["x[batch, 3]", "i[i_dim_0]"],
        "out[i_dim_0, 3]",
    );
    check(
        "%x: f32[-1, -1] data
         %out: f32[-1]
         (Out: %out) = reshape2(X: %x) {shape: [-1]}",
        &["x[batch, x_dim_1]"],
        "out[?]",
    );
}

#[test]
fn results_keep_their_names() {
    // A result that is an input, one under two names, and one that is overwritten.
    let text = "%x: f32[2] data
        %a: f32[2]
        %b: f32[2]
        (Out: %a) = relu(X: %x)
        (Out: %b) = assign(X: %a)
        (Out: %a) = increment(X: %a)";
    let graph = graph_of(&parse(text), &["a", "b"]).unwrap();
    let outputs: Vec<&str> = graph.output.iter().map(|info| &info.name[..]).collect();
    assert_eq!(outputs, ["a", "b"]);
    check_order(&graph);
    let graph = graph_of(&parse(text), &["x"]).unwrap();
    assert_eq!(graph.output.len(), 1);
    check_order(&graph);
}

#[test]
fn branches_become_if() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let is_large = x.abs().mean().greater_than(1.0);
    let y = net.cond(is_large, || x.fc(Fc::new(3).act(Act::Relu)), || x.fc(3)).name();
    let graph = graph_of(&net.build().unwrap().main, &[&y]).unwrap();
    let node = graph.node.iter().find(|node| node.op_type == "If").unwrap();
    let branch = |name: &str| {
        let attribute = node.attribute.iter().find(|it| it.name == name).unwrap();
        attribute.g.as_ref().unwrap()
    };
    assert!(ops(branch("then_branch")).contains(&"Relu"));
    assert!(!ops(branch("else_branch")).contains(&"Relu"));
    check_order(&graph);
}

#[test]
fn a_table_on_servers_becomes_a_hash_table_over_its_rows() {
    let text = "%ids: i64[-1, 1] data
        %out: f32[-1, 2]
        (Outputs: %out) = distributed_lookup_table(Ids: %ids) \
        {table_id: 3, width: 2, padding_idx: 7, lookup_table_version: \"lookup_table\"}";
    let model = export_as(&parse(text), &["out"], &OnnxOptions::default()).unwrap();
    assert_eq!(model.opset_import[1].domain, "ai.onnx.ml");
    let graph = model.graph.unwrap();
    assert_eq!(ops(&graph), ["LabelEncoder", "Gather", "Squeeze"]);
    let node = &graph.node[0];
    let attribute = |name: &str| node.attribute.iter().find(|it| it.name == name).unwrap();
    assert_eq!(attribute("keys_int64s").ints, [-5, i64::MAX]);
    assert_eq!(attribute("values_int64s").ints, [0, 1]);
    assert_eq!(attribute("default_int64").i, Some(2));
    let rows = graph.initializer.iter().find(|it| it.name == "table_3").unwrap();
    let values: Vec<f32> = rows
        .raw_data
        .as_ref()
        .unwrap()
        .chunks(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(values, [3.0, 4.0, 1.0, 2.0, 0.0, 0.0]);
}

/// Checks that an export fails with these words.
fn refused(program: &Program, targets: &[&str], options: &OnnxOptions, words: &[&str]) {
    let error = export_as(program, targets, options).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

#[test]
fn refusals_say_what_and_why() {
    let options = OnnxOptions::default();
    let program = parse(
        "%x: f32[-1, 2] data
         %noise: f32[3, 2]
         %y: f32[3, 2]
         (Out: %noise) = gaussian_random() {shape: [3, 2]} at=\"model.py:7\"
         (Out: %y) = elementwise_add(X: %noise, Y: %x)",
    );
    let words = ["'gaussian_random'", "random numbers", "noise", "model.py:7", "help:"];
    refused(&program, &["y"], &options, &words);
    refused(&program, &["z"], &options, &["'z'"]);
    refused(&program, &[], &options, &["name one result"]);
    for opset in [16, 24] {
        let options = OnnxOptions { opset, ..OnnxOptions::default() };
        refused(&program, &["y"], &options, &["17 to 23", &opset.to_string()]);
    }
    let feeds = OnnxOptions { feeds: vec!["other".into()], ..OnnxOptions::default() };
    refused(&program, &["y"], &feeds, &["need the input 'x'", "only other"]);

    let table = parse(
        "%ids: i64[-1] data
         %w: f32[100, 2] persistable
         %out: f32[-1, 2]
         (Out: %out) = lookup_table_v2(W: %w, Ids: %ids)",
    );
    let few = OnnxOptions { table_rows_max: 99, ..OnnxOptions::default() };
    refused(&table, &["out"], &few, &["'w'", "at most 99 rows", "100", "--max-table-rows"]);

    let alone = parse(
        "%yes: bool[1] data
         %x: f32[2] data
         %y: f32[2]
         () = conditional_block(Cond: %yes) {sub_block: block1}
         }
         block1 in block0 {
         (Out: %y) = assign(X: %x)",
    );
    refused(&alone, &["y"], &options, &["without the opposite branch"]);
}

#[test]
fn inputs_are_in_the_order_of_the_caller() {
    let program = parse(
        "%x: f32[2] data
         %y: f32[2] data
         %z: f32[2] data
         %out: f32[2]
         (Out: %out) = elementwise_sub(X: %x, Y: %y)",
    );
    let feeds = ["z", "y", "x"].map(String::from).to_vec();
    let options = OnnxOptions { feeds, ..OnnxOptions::default() };
    let graph = export_as(&program, &["out"], &options).unwrap().graph.unwrap();
    assert_eq!(names(&graph.input), ["y[2]", "x[2]"]);
}
