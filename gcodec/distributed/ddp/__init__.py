"""The hook for ``DistributedDataParallel`` and its three states: for the codec, for compressors and for controllers."""
