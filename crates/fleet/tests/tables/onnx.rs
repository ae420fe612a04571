//! ONNX files of models whose tables are on parameter servers.

use fleet::prelude::*;
use fleet::ps::{PullMode, SaveFormat, SaveMode};
use fleet::{OnnxOptions, export_onnx, export_onnx_model};
use fleet_onnx::proto::ModelProto;
use prost::Message;

/// The rows of the file are those that inference reads, of ids of 64 bits.
#[test]
fn rows_of_servers_become_constants() {
    let folder = std::env::temp_dir().join(format!("fleet-onnx-tables-{}", std::process::id()));
    let (saved, file) = (folder.join("save"), folder.join("model.onnx"));
    let (fleet, net) = (Fleet::parameter_server().unwrap(), Net::new());
    let ids = net.data("ids", [-1, 2], DType::I64);
    let y = net.data("y", [-1, 1], DType::F32);
    let table = SparseEmbedding::new(1000, 3).any_id(true);
    let score = ids.sparse_embedding(table).flatten(1).fc(1);
    let loss = score.mse_loss(y, Reduction::Mean);
    let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &DistributedStrategy::new());
    let job = optimizer.minimize_on_servers(&net, loss).unwrap();
    let score = score.name();
    let options = ExecOptions::threads(1);
    let mut worker = fleet.init_worker(net.build().unwrap(), &job, options).unwrap();
    let seen = [7i64, -3, i64::MIN, 1 << 40];
    let ids = Tensor::from_slice(&seen, [2, 2]).unwrap();
    let y = Tensor::from_slice(&[1.0f32, -1.0], [2, 1]).unwrap();
    for _ in 0..3 {
        worker.run(&[("ids", &ids), ("y", &y)], &[]).unwrap();
    }
    worker.save_inference_model(&saved, &[&score], SaveMode::All, SaveFormat::Binary).unwrap();
    let mut sorted = seen;
    sorted.sort_unstable();
    let unsigned = sorted.map(|id| id as u64);
    let (mut rows, id) = (vec![0.0; 12], job.plan.tables.sparse[0].table_id());
    let tables = worker.servers().tables.clone();
    tables.pull_sparse(id, (&unsigned[..]).into(), &mut rows, PullMode::Infer).unwrap();
    worker.stop().unwrap();

    // The save and the model in it are the same.
    let options = OnnxOptions::default();
    for dir in [saved.clone(), saved.join("model")] {
        let written = export_onnx_model(dir, &file, &options).unwrap();
        assert_eq!(
            (&written.inputs[..], &written.outputs[..]),
            (&["ids".into()][..], &[score.clone()][..])
        );
        let model = ModelProto::decode(&std::fs::read(&file).unwrap()[..]).unwrap();
        let graph = model.graph.unwrap();
        let lookup = graph.node.iter().find(|node| node.op_type == "LabelEncoder").unwrap();
        let keys = lookup.attribute.iter().find(|it| it.name == "keys_int64s").unwrap();
        assert_eq!(keys.ints, sorted);
        let name = format!("table_{id}");
        let constant = graph.initializer.iter().find(|it| it.name == name).unwrap();
        assert_eq!(constant.dims, [5, 3]);
        let bytes: Vec<u8> = rows.iter().chain(&[0.0; 3]).flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(constant.raw_data.as_deref(), Some(&bytes[..]));
    }
    std::fs::remove_file(&file).unwrap();
    let few = OnnxOptions { table_rows_max: 3, ..options.clone() };
    let error = export_onnx_model(&saved, &file, &few).unwrap_err().to_string();
    assert!(error.contains("at most 3 rows, got 4") && error.contains("max-table-rows"), "{error}");
    // A program whose rows are nowhere.
    let model = fleet::load_inference_model(saved.join("model")).unwrap();
    let error = export_onnx(&file, &model.program, &[&score], &model.scope, &options);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("on parameter servers") && error.contains("help:"), "{error}");
    assert!(!file.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}
