"""The defaults of `Entry`: ``plsc.config.config``."""


class _Config(dict):
    """A dict whose items are attributes too."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


config = _Config(
    train_batch_size=128,
    dataset_dir="./train_data",
    train_image_num=5822653,
    train_epochs=120,
    warmup_epochs=0,
    lr=0.1,
    lr_steps=(100000, 160000, 220000),
    val_targets="lfw",
    test_batch_size=120,
    with_test=True,
    model_name="ResNet50",
    checkpoint_dir="",
    model_save_dir="./output",
    loss_type="dist_arcface",
    num_classes=85742,
    image_shape=(3, 112, 112),
    margin=0.5,
    scale=64.0,
    emb_dim=512,
    sample_ratio=1.0,
)
