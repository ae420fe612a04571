"""Models of the zoo, written as users of Python write them."""

import fleet
from fleet import ParamAttr, concat, fluid, nn, static
from fleet.nn import functional as F


def classify(logits):
    label = static.data("y", [None, 1], "int64")
    loss = F.cross_entropy(logits, label)
    static.accuracy(logits, label, k=1)
    static.accuracy(logits, label, k=5)
    return loss


def lenet():
    image = static.data("x", [None, 1, 28, 28], "float32")
    x = static.nn.conv2d(image, 6, 5, padding=2, act="relu")
    x = fluid.layers.pool2d(x, pool_size=2, pool_stride=2)
    x = static.nn.conv2d(x, 16, 5, act="relu")
    x = fluid.layers.pool2d(x, pool_size=2, pool_stride=2)
    x = static.nn.fc(x, 120, activation="relu")
    x = static.nn.fc(input=x, size=84, act="relu")
    return classify(fluid.layers.fc(x, 10))


def wide_deep():
    dense = static.data("dense_input", [None, 13])
    ids = static.data("sparse_input", [None, 26], "int64")
    label = static.data("label", [None, 1])
    table = ParamAttr(name="table", initializer=nn.initializer.Uniform(-0.01, 0.01))
    rows = static.nn.embedding(ids, [1000000, 16], is_sparse=True, param_attr=table)
    deep = concat([fluid.layers.flatten(rows), dense], axis=1)
    for _ in range(3):
        deep = static.nn.fc(deep, 400, activation="relu")
    logit = static.nn.fc(dense, 1, name="wide") + static.nn.fc(deep, 1, name="deep")
    loss = fluid.layers.mean(F.sigmoid_cross_entropy_with_logits(logit, label))
    prediction = F.sigmoid(logit)
    static.auc(prediction, label.astype("int64"), num_thresholds=2**12, slide_steps=20)
    return loss


def conv_bn(x, filters, size, stride, act, name):
    y = fluid.layers.conv2d(
        input=x,
        num_filters=filters,
        filter_size=size,
        stride=stride,
        padding=(size - 1) // 2,
        param_attr=ParamAttr(name=name + "_weights"),
        bias_attr=False,
        name=name + ".conv2d.output.1",
    )
    bn = "bn" + name[3:] if name.startswith("res") else "bn_" + name
    return fluid.layers.batch_norm(
        input=y,
        act=act,
        name=bn + ".output.1",
        param_attr=ParamAttr(name=bn + "_scale"),
        bias_attr=ParamAttr(bn + "_offset"),
        moving_mean_name=bn + "_mean",
        moving_variance_name=bn + "_variance",
    )


def residual(x, width, stride, bottleneck, name):
    if bottleneck:
        y = conv_bn(x, width, 1, 1, "relu", name + "_branch2a")
        y = conv_bn(y, width, 3, stride, "relu", name + "_branch2b")
        width = 4 * width
        y = conv_bn(y, width, 1, 1, None, name + "_branch2c")
    else:
        y = conv_bn(x, width, 3, stride, "relu", name + "_branch2a")
        y = conv_bn(y, width, 3, 1, None, name + "_branch2b")
    if stride != 1 or x.shape[1] != width:
        x = conv_bn(x, width, 1, stride, None, name + "_branch1")
    return fluid.layers.elementwise_add(x=x, y=y, act="relu", name=name + ".add.output.5")


def resnet(stages, bottleneck):
    image = static.data("x", [None, 3, 224, 224], "float32")
    x = conv_bn(image, 64, 7, 2, "relu", "conv1")
    x = fluid.layers.pool2d(x, pool_size=3, pool_stride=2, pool_padding=1, pool_type="max")
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            name = f"res{stage + 2}{'abcdef'[block]}"
            x = residual(x, 64 << stage, stride, bottleneck, name)
    x = fluid.layers.pool2d(x, pool_type="avg", global_pooling=True)
    bound = 1.0 / float(x.shape[1]) ** 0.5
    weight = ParamAttr(name="fc_0.w_0", initializer=nn.initializer.Uniform(-bound, bound))
    return classify(fluid.layers.fc(x, 1000, param_attr=weight, bias_attr="fc_0.b_0"))


def resnet18():
    return resnet([2, 2, 2, 2], False)


def resnet50():
    return resnet([3, 4, 6, 3], True)


def vgg16():
    x = static.data("x", [None, 3, 224, 224])
    for filters, convolutions in zip([64, 128, 256, 512, 512], [2, 2, 3, 3, 3]):
        for _ in range(convolutions):
            x = static.nn.conv2d(x, filters, 3, padding=1, act="relu")
        x = fluid.layers.pool2d(x, pool_size=2, pool_stride=2)
    for _ in range(2):
        x = F.dropout(static.nn.fc(x, 4096, activation="relu"), 0.5)
    return classify(static.nn.fc(x, 1000))


def bert():
    init = nn.initializer.TruncatedNormal(0.0, 0.02)

    def attr(name, split=None):
        return ParamAttr(name=name, initializer=init, split=split)

    tokens = static.data("src_ids", [None, 128], "int64")
    x = static.nn.embedding(tokens, [30522, 768], param_attr=attr("word_embedding", 0))
    positions = static.create_parameter([512, 768], "float32", attr=attr("pos_embedding"))
    x = x + fleet.slice(positions, [0], [0], [128])
    sentences = static.data("sent_ids", [None, 128], "int64")
    x = x + static.nn.embedding(sentences, [2, 768], param_attr=attr("sent_embedding"))
    x = static.nn.layer_norm(
        x, begin_norm_axis=2, epsilon=1e-12, name="pre_encoder_layer_norm"
    )
    x = F.dropout(x, 0.1)
    mask = static.data("input_mask", [None, 128])
    mask = fleet.unsqueeze((mask - 1.0) * 1e4, [1, 2])
    for index in range(12):
        x = static.nn.transformer_layer(
            x, 12, 3072, mask=mask, dropout=0.1, attention_dropout=0.1, epsilon=1e-12,
            initializer=init, name=f"encoder_layer_{index}", split=True,
        )
    places = static.data("mask_pos", [None, 1], "int64")
    labels = static.data("mask_label", [None, 1], "int64")
    masked = fleet.gather(fleet.reshape(x, [-1, 768]), fleet.reshape(places, [-1]))
    words = static.nn.fc(
        masked, 768, activation="gelu", weight_attr=ParamAttr(initializer=init),
        name="mask_lm_trans_fc",
    )
    words = static.nn.layer_norm(words, epsilon=1e-12, name="mask_lm_trans_layer_norm")
    zero = nn.initializer.Constant(0.0)
    bias = ParamAttr(name="mask_lm_out_fc.b_0", initializer=zero, split=0)
    bias = static.create_parameter([30522], "float32", attr=bias)
    table = static.default_main_program().var("word_embedding")
    logits = fleet.matmul(words, table, transpose_y=True) + bias
    return F.cross_entropy(logits, labels)


def gpt():
    init = nn.initializer.Normal(0.0, 0.02)

    def attr(name, split=None):
        return ParamAttr(name=name, initializer=init, split=split)

    tokens = static.data("tokens", [None, 1024], "int64")
    labels = static.data("labels", [None, 1024], "int64")
    x = static.nn.embedding(tokens, [50257, 768], param_attr=attr("word_embedding", 0))
    x = x + static.create_parameter([1024, 768], "float32", attr=attr("pos_embedding"))
    x = F.dropout(x, 0.1)
    for index in range(12):
        x = static.nn.transformer_layer(
            x, 12, 3072, pre_norm=True, activation="gelu_tanh", causal=True, dropout=0.1,
            attention_dropout=0.1, initializer=init, name=f"decoder_layer_{index}", split=True,
        )
    x = static.nn.layer_norm(x, begin_norm_axis=2, name="final_layer_norm")
    table = static.default_main_program().var("word_embedding")
    logits = fleet.matmul(fleet.reshape(x, [-1, 768]), table, transpose_y=True)
    return F.cross_entropy(logits, fleet.reshape(labels, [-1, 1]))


def deepfm():
    dense = static.data("dense_input", [None, 13])
    ids = static.data("sparse_input", [None, 26], "int64")
    label = static.data("label", [None, 1])

    def rows(width, name):
        attr = ParamAttr(name=name, initializer=nn.initializer.Uniform(-0.01, 0.01))
        return static.nn.embedding(ids, [1000000, width], is_sparse=True, param_attr=attr)

    first = fluid.layers.flatten(rows(1, "first_order"))
    first = fluid.layers.reduce_sum(first, dim=[1], keep_dim=True) + static.nn.fc(dense, 1)
    attr = ParamAttr(name="dense_factors", initializer=nn.initializer.Uniform(-0.01, 0.01))
    factors = static.create_parameter([13, 10], "float32", attr=attr)
    numbers = fleet.unsqueeze(dense, [2]) * factors
    features = concat([rows(10, "factors"), numbers], axis=1)
    square_of_sum = fleet.square(fleet.sum(features, axis=[1]))
    sum_of_squares = fleet.sum(fleet.square(features), axis=[1])
    second = fleet.sum(square_of_sum - sum_of_squares, axis=[1], keepdim=True) * 0.5
    deep = fluid.layers.flatten(features)
    for _ in range(3):
        deep = static.nn.fc(deep, 400, activation="relu")
    logit = fleet.add_n([first, second, static.nn.fc(deep, 1)])
    loss = fleet.mean(F.sigmoid_cross_entropy_with_logits(logit, label))
    static.auc(F.sigmoid(logit), label.astype("int64"), num_thresholds=2**12, slide_steps=20)
    return loss


def word2vec():
    center, context = [static.data(name, [None, 1], "int64") for name in ("center", "context")]
    negatives = static.data("negatives", [None, 5], "int64")

    def table(ids, name, init):
        attr = ParamAttr(name=name, initializer=init)
        return static.nn.embedding(ids, [10000, 128], is_sparse=True, param_attr=attr)

    bound = 0.5 / 128
    word = table(center, "emb", nn.initializer.Uniform(-bound, bound))
    others = concat([context, negatives], axis=1)
    others = table(others, "emb_w", nn.initializer.Constant(0.0))
    logits = fleet.sum(others * word, axis=[2])
    right, wrong = fleet.split(logits, [1, 5], axis=1)
    right = F.softplus(-right)
    wrong = fleet.sum(F.softplus(wrong), axis=[1], keepdim=True)
    return fleet.mean(right + wrong)
