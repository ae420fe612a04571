"""Layers: ``fleet.static.nn``. They also take the names ``input``, ``param_attr`` and ``act``."""

from fleet._absent import absent as _absent
from fleet._cond import cond
from fleet._layers import define as _define
from fleet._layers import old_spellings as _old_spellings

_define(
    globals(),
    """
    fc(x, size, num_flatten_dims=1, weight_attr=None, bias_attr=None, activation=None, name=None, \
        split=None)
    embedding(input, size, is_sparse=False, is_distributed=False, padding_idx=None, \
        param_attr=None, dtype='float32')
    sparse_embedding(input, size, padding_idx=None, is_test=False, entry=None, \
        table_class='MemorySparseTable', param_attr=None, dtype='float32', slot=None)
    conv2d(input, num_filters, filter_size, stride=1, padding=0, dilation=1, groups=None, \
        param_attr=None, bias_attr=None, use_cudnn=True, act=None, name=None, data_format='NCHW')
    batch_norm(input, act=None, is_test=False, momentum=0.9, epsilon=1e-05, param_attr=None, \
        bias_attr=None, data_layout='NCHW', in_place=False, name=None, moving_mean_name=None, \
        moving_variance_name=None, do_model_average_for_mean_and_var=True, use_global_stats=False)
    layer_norm(input, scale=True, shift=True, begin_norm_axis=1, epsilon=1e-05, param_attr=None, \
        bias_attr=None, act=None, name=None)
    pool2d(input, pool_size=-1, pool_type='max', pool_stride=1, pool_padding=0, \
        global_pooling=False, use_cudnn=True, ceil_mode=False, name=None, exclusive=True, \
        data_format='NCHW')
    multi_head_attention(x, heads, key_value=None, causal=False, mask=None, dropout=0.0, \
        initializer=None, name=None, split_heads=False)
    class_loss(input, label, classes, normalize=False, margin=0.0, scale=1.0, sample=None, \
        weight_attr=None, reduction='mean', name=None)
    transformer_layer(x, heads, ffn, pre_norm=False, activation='gelu', causal=False, mask=None, \
        dropout=0.0, attention_dropout=0.0, epsilon=1e-05, initializer=None, name=None, \
        split=False)
    """,
)

fc = _old_spellings(fc)  # noqa: F821
embedding = _old_spellings(embedding)  # noqa: F821

__getattr__ = _absent(__name__)
