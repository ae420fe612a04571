"""A collective job that reads images through a loader: document 002, lines 469 to 582."""

import os

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

base_lr = 0.05
l2_decay = 1e-4
batch_size = 4
class_dim = 10
paddle.dataset.flowers.SAMPLES["train"] = 24


def conv_bn(x, filters, stride):
    """A convolution and a batch normalization."""
    conv = paddle.fluid.layers.conv2d(
        input=x, num_filters=filters, filter_size=3, stride=stride, padding=1, bias_attr=False
    )
    return paddle.fluid.layers.batch_norm(input=conv, act="relu")


def network(image):
    """A residual block on small images."""
    x = paddle.fluid.layers.pool2d(input=image, pool_size=8, pool_stride=8, pool_type="avg")
    x = conv_bn(x, 8, 2)
    x = paddle.fluid.layers.elementwise_add(x=x, y=conv_bn(x, 8, 1), act="relu")
    x = paddle.fluid.layers.pool2d(input=x, pool_type="avg", global_pooling=True)
    return paddle.static.nn.fc(x, size=class_dim)


def optimizer_setting(parameter_list=None):
    """Momentum with decay."""
    return paddle.optimizer.Momentum(
        learning_rate=base_lr,
        momentum=0.9,
        weight_decay=paddle.regularizer.L2Decay(l2_decay),
        parameters=parameter_list,
    )


def get_train_loader(feed_list, place):
    """Batches of images, decoded ahead of time."""

    def decorated(reader):
        def read():
            for item in reader():
                img = np.array(item[0]).astype("float32").reshape(3, 224, 224)
                label = np.array(item[1]).astype("int64").reshape(1)
                yield img, label

        return read

    train_reader = paddle.batch(
        decorated(paddle.dataset.flowers.train(use_xmap=True)),
        batch_size=batch_size,
        drop_last=True,
    )
    train_loader = paddle.io.DataLoader.from_generator(
        capacity=32, use_double_buffer=True, feed_list=feed_list, iterable=True
    )
    train_loader.set_sample_list_generator(train_reader, place)
    return train_loader


def train_resnet():
    """Two passes over the images."""
    paddle.enable_static()
    paddle.vision.set_image_backend("cv2")
    image = paddle.static.data(name="x", shape=[None, 3, 224, 224], dtype="float32")
    label = paddle.static.data(name="y", shape=[None, 1], dtype="int64")
    out = network(image)
    avg_cost = paddle.nn.functional.cross_entropy(input=out, label=label)
    acc_top1 = paddle.metric.accuracy(input=out, label=label, k=1)
    acc_top5 = paddle.metric.accuracy(input=out, label=label, k=5)
    place = paddle.CUDAPlace(int(os.environ.get("FLAGS_selected_gpus", 0)))
    train_loader = get_train_loader([image, label], place)

    strategy = fleet.DistributedStrategy()
    fleet.init(is_collective=True, strategy=strategy)
    optimizer = fleet.distributed_optimizer(optimizer_setting())
    optimizer.minimize(avg_cost)
    exe = paddle.static.Executor(place)
    exe.run(paddle.static.default_startup_program())
    for epoch in range(2):
        for batch_id, data in enumerate(train_loader()):
            loss, acc1, acc5 = exe.run(
                paddle.static.default_main_program(),
                feed=data,
                fetch_list=[avg_cost.name, acc_top1.name, acc_top5.name],
            )
            if batch_id % 5 == 0:
                print(
                    "[Epoch %d, batch %d] loss: %.5f, acc1: %.5f, acc5: %.5f"
                    % (epoch, batch_id, loss, acc1, acc5)
                )
            assert np.isfinite(loss) and acc1 <= acc5
    assert (epoch, batch_id) == (1, 5)
    if fleet.is_first_worker():
        print("resnet: done")


if __name__ == "__main__":
    train_resnet()
