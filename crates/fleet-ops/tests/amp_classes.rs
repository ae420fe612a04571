//! The mixed-precision class of every op: that of the recorded lists, or an exception with its
//! reason.

use fleet_ops::{AmpClass, Registry};

const WHITE: &str = "conv2d einsum matmul matmul_v2 max_pool2d_with_index mul fused_gemm_epilogue \
    fake_quantize_dequantize_abs_max fake_quantize_dequantize_moving_average_abs_max \
    fused_attention fused_bn_add_activation fused_feedforward resnet_unit";

const BLACK: &str = "acos asin atanh bicubic_interp_v2 bilinear_interp_v2 \
    c_softmax_with_cross_entropy cosh cross_entropy cross_entropy2 cumprod cumsum dist erfinv exp \
    expm1 frobenius_norm group_norm hsigmoid_loss huber_loss layer_norm linear_interp_v2 log log10 \
    log2 log_loss log_softmax lookup_table lookup_table_v2 margin_cross_entropy mean \
    nearest_interp_v2 nll_loss pnorm pow reciprocal reduce_mean reduce_prod reduce_sum renorm \
    rsqrt scatter sigmoid_cross_entropy_with_logits sinh softmax softmax_with_cross_entropy \
    softmin softplus square tan tanh_shrink trilinear_interp_v2 triplet_margin_loss";

const GRAY: &str = "batch_norm c_allreduce_sum c_concat c_identity cast concat dropout \
    elementwise_add elementwise_div elementwise_floordiv elementwise_max elementwise_min \
    elementwise_mod elementwise_mul elementwise_pow elementwise_sub fill_constant flatten2 \
    fused_attention fused_bn_add_activation fused_feedforward fused_multi_transformer gather \
    gaussian_random get_tensor_from_selected_rows layer_norm leaky_relu pool2d pool3d rank relu \
    relu6 reshape2 scale sigmoid sign slice soft_relu split stack tanh top_k transpose2 \
    uniform_random uniform_random_batch_size_like unstack";

/// Ops that are on no list and have a class in Fleet.
const EXCEPTIONS: [(&str, AmpClass, &str); 12] = [
    ("c_embedding", AmpClass::Black, "a lookup_table_v2 of divided rows"),
    ("c_gather_parts", AmpClass::Gray, "a c_concat along any axis"),
    ("c_scatter_sum", AmpClass::Gray, "a c_allreduce_sum of which a rank takes its part"),
    ("c_take_part", AmpClass::Gray, "a slice"),
    ("distributed_lookup_table", AmpClass::Black, "a lookup_table_v2 of servers"),
    ("flash_attn", AmpClass::White, "two products, with f32 sums inside"),
    ("flash_attn_qkvpacked", AmpClass::White, "as flash_attn"),
    ("fused_batch_norm_act", AmpClass::Gray, "a fusion of batch_norm, made after the casts"),
    ("fused_elemwise_activation", AmpClass::Gray, "a fusion of elementwise_add, as above"),
    ("fused_embedding_concat", AmpClass::Black, "a fusion of lookup_table_v2, as above"),
    ("mp_allreduce_sum", AmpClass::Gray, "a c_allreduce_sum of ranks that share layers"),
    ("sync_batch_norm", AmpClass::Gray, "recorded programs replace batch_norm after the casts"),
];

/// Returns the class of the lists. An op on two of them follows the first.
fn recorded(name: &str) -> AmpClass {
    let lists = [(BLACK, AmpClass::Black), (WHITE, AmpClass::White), (GRAY, AmpClass::Gray)];
    let found = lists.iter().find(|(list, _)| list.split_whitespace().any(|op| op == name));
    found.map_or(AmpClass::Unlisted, |(_, class)| *class)
}

#[test]
fn classes_are_those_of_the_lists() {
    let registry = Registry::standard();
    let forward = registry.defs().iter().filter(|def| registry.forward_of(def.spec.name).is_none());
    let mut wrong = Vec::new();
    for def in forward {
        let name = def.spec.name;
        let exception = EXCEPTIONS.iter().find(|(op, ..)| *op == name);
        let expected = exception.map_or_else(|| recorded(name), |(_, class, _)| *class);
        if def.traits.amp != expected {
            wrong.push(format!("{name}: expected {expected:?}, got {:?}", def.traits.amp));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn exceptions_are_needed() {
    for (name, class, reason) in EXCEPTIONS {
        assert!(Registry::standard().find(name).is_some(), "{name}");
        assert_ne!(recorded(name), class, "{name}: {reason}");
    }
}
