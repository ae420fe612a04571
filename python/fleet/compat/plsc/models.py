"""Networks in front of the classifier: ``plsc.models``."""

from fleet import nn
from fleet.static import nn as layers


class BaseModel:
    """The base of a user's network: a subclass defines ``build_network``, whose result are the
    features of a sample. The classifier is added behind it."""

    def build_network(self, input, label, is_train=True):
        """Returns the features, of shape [-1, width]. A method without ``label`` gets an ``input``
        whose attributes are all inputs, by name."""
        raise NotImplementedError(f"{type(self).__name__} must define build_network")


class ResNet(BaseModel):
    """A residual network for images."""

    #: Blocks of each width, by the number of layers.
    BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}

    def __init__(self, layers=50, emb_dim=512):
        if layers not in self.BLOCKS:
            raise ValueError(f"layers: expected 50, 101 or 152, got {layers!r}")
        self.layers = layers
        self.emb_dim = emb_dim

    def build_network(self, input, label, is_train=True):
        x = self._norm(layers.conv2d(input, 64, 3, padding=1, bias_attr=False), is_train, "relu")
        for stage, count in enumerate(self.BLOCKS[self.layers]):
            for block in range(count):
                x = self._block(x, 64 << stage, 2 if block == 0 else 1, is_train)
        x = nn.functional.dropout(self._norm(x, is_train), 0.4, training=is_train)
        return self._norm(layers.fc(x, self.emb_dim), is_train)

    def _block(self, x, width, stride, is_train):
        """A bottleneck block, whose output has four times ``width`` channels."""

        def conv(x, channels, size, stride=1, act=None):
            padding = (size - 1) // 2
            x = layers.conv2d(x, channels, size, stride, padding, bias_attr=False)
            return self._norm(x, is_train, act)

        made = conv(x, width, 1, act="relu")
        made = conv(made, width, 3, stride, "relu")
        made = conv(made, 4 * width, 1)
        if stride != 1 or x.shape[1] != 4 * width:
            x = conv(x, 4 * width, 1, stride)
        return nn.functional.relu(x + made)

    @staticmethod
    def _norm(x, is_train, act=None):
        return layers.batch_norm(x, act=act, is_test=not is_train, momentum=0.9, epsilon=2e-5)


def ResNet50(emb_dim=512):
    """A residual network of 50 layers."""
    return ResNet(50, emb_dim)


def ResNet101(emb_dim=512):
    """A residual network of 101 layers."""
    return ResNet(101, emb_dim)


def ResNet152(emb_dim=512):
    """A residual network of 152 layers."""
    return ResNet(152, emb_dim)
