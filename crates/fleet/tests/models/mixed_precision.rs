//! Mixed precision in bfloat16. On machines with bf16 multiplication, gradients equal those of the
//! f32 program up to rounding, fused or not.

use fleet::prelude::*;

/// Large enough for the machine's bf16 unit, with edges that do not fill a tile.
const ROWS: i64 = 70;
const INPUTS: i64 = 45;
const HIDDEN: i64 = 83;

const SEEN: [&str; 5] =
    ["fc_0.w_0@GRAD", "fc_0.b_0@GRAD", "fc_1.w_0@GRAD", "fc_1.b_0@GRAD", "fc_2.w_0@GRAD"];

/// Returns the gradients of one step.
fn gradients(act: Option<Act>, half: bool, fused: bool) -> Result<Vec<Vec<f32>>> {
    let net = Net::new();
    let x = net.data("x", [-1, INPUTS], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let layer = |width: i64| act.map_or(Fc::new(width), |act| Fc::new(width).act(act));
    let out = x.fc(layer(HIDDEN)).fc(layer(HIDDEN)).fc(1);
    let loss = out.mse_loss(y, Reduction::Mean);
    let mut strategy = DistributedStrategy::new().with_amp(half);
    strategy.amp_configs_mut().set_use_pure_bf16(true);
    let fleet = Fleet::collective()?;
    let job = fleet.distributed_optimizer(Sgd::new(0.0), &strategy).minimize(&net, loss)?;
    let build = BuildOptions { fuse_elewise_add_act_ops: fused, ..BuildOptions::default() };
    let options = ExecOptions { build, ..ExecOptions::threads(2) };
    let mut session = fleet.session(net.build()?, &job, options)?;
    let mut rng = fleet::rng::Sequence::new(5, 5);
    let mut numbers =
        |len: i64| -> Vec<f32> { (0..len).map(|_| rng.unit() as f32 - 0.5).collect() };
    let x = Tensor::from_slice(&numbers(ROWS * INPUTS), [ROWS, INPUTS])?;
    let y = Tensor::from_slice(&numbers(ROWS), [ROWS, 1])?;
    let out = session.run(&[("x", &x), ("y", &y)], &SEEN)?;
    out.iter().map(|tensor| tensor.to_vec::<f32>()).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let apart: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (apart / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[test]
fn bf16_gradients_are_those_of_f32_but_for_rounding() {
    for act in [None, Some(Act::Relu), Some(Act::Tanh), Some(Act::Gelu)] {
        let exact = gradients(act, false, true).unwrap();
        for fused in [true, false] {
            let half = gradients(act, true, fused).unwrap();
            for ((half, exact), name) in half.iter().zip(&exact).zip(SEEN) {
                assert_eq!(half.len(), exact.len());
                let distance = distance(half, exact);
                assert!(distance < 0.06, "{act:?}, fused {fused}: {name} is off by {distance}");
                assert!(distance > 1e-5, "{act:?}: {name} was not made in bf16");
            }
        }
    }
}
