"""Models of the zoo, written as users of Python write them."""

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


def basic_block(x, width, stride, name):
    y = conv_bn(x, width, 3, stride, "relu", name + "_branch2a")
    y = conv_bn(y, width, 3, 1, None, name + "_branch2b")
    if stride != 1 or x.shape[1] != width:
        x = conv_bn(x, width, 1, stride, None, name + "_branch1")
    return fluid.layers.elementwise_add(x=x, y=y, act="relu", name=name + ".add.output.5")


def resnet18():
    image = static.data("x", [None, 3, 224, 224], "float32")
    x = conv_bn(image, 64, 7, 2, "relu", "conv1")
    x = fluid.layers.pool2d(x, pool_size=3, pool_stride=2, pool_padding=1, pool_type="max")
    for stage in range(4):
        for block in range(2):
            stride = 2 if block == 0 and stage > 0 else 1
            x = basic_block(x, 64 << stage, stride, f"res{stage + 2}{'ab'[block]}")
    x = fluid.layers.pool2d(x, pool_type="avg", global_pooling=True)
    bound = 1.0 / float(x.shape[1]) ** 0.5
    weight = ParamAttr(name="fc_0.w_0", initializer=nn.initializer.Uniform(-bound, bound))
    return classify(fluid.layers.fc(x, 1000, param_attr=weight, bias_attr="fc_0.b_0"))
