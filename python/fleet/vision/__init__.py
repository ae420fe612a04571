"""What the documents use of ``paddle.vision``."""

from fleet._absent import absent as _absent

_BACKENDS = ("pil", "cv2", "tensor")


def set_image_backend(backend):
    """Checks the name, and does nothing: readers of Python decode images with what they import."""
    if backend not in _BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(_BACKENDS)}, got {backend!r}")


__getattr__ = _absent(__name__)
