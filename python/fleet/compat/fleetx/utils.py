"""``fleetx.utils``."""


class Downloader:
    """Stands for the downloader of data sets: nothing is downloaded."""

    def download_from_hdfs(self, fs_yaml, local_path="./", shard_num=-1, shard_id=-1):
        """Not supported from Python."""
        raise NotImplementedError(
            "download_from_hdfs() is not supported from Python\n  "
            "help: use fleet::data::Downloader of the Rust API, or copy the files"
        )

    def download_from_bos(self, fs_yaml, local_path="./", shard_num=-1, shard_id=-1):
        """Not supported: there is no client for this store."""
        raise NotImplementedError(
            "download_from_bos() is not supported\n  help: copy the files to the local folder"
        )
