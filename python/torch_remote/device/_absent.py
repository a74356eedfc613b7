"""Names of `torch.cuda` that `torch.remote` lacks, and the reasons. docs/python-api.md has the same table."""

_TENSORS = "torch's old tensor types; use dtype= and device="
_ALLOCATOR = "tensors' memory is allocated by the worker, not by this process"
_GRAPHS = "not needed: a repeated step is sent as one message; torch.compile(mode='reduce-overhead') lowers its cost"
_NVIDIA = "specific to CUDA, which only workers on GPUs use"
_SENSORS = "workers read no sensors"

_OF_GRAPHS = (
    "CUDAGraph",
    "export_dot",
    "export_graph_data",
    "graph",
    "graph_annotations",
    "graph_pool_handle",
    "graphs",
    "make_graphed_callables",
)
MISSING_NAMES: dict[str, str] = {
    **{
        f"{dtype}{kind}": _TENSORS
        for dtype in (
            "BFloat16", "Bool", "Byte", "Char", "ComplexDouble", "ComplexFloat", "Double", "Float", "Half", "Int",
            "Long", "Short",
        )
        for kind in ("Storage", "Tensor")
        if not (dtype.startswith("Complex") and kind == "Tensor")
    },
    **dict.fromkeys(_OF_GRAPHS, _GRAPHS),
    **dict.fromkeys(
        (
            "CUDAPluggableAllocator", "MemPool", "caching_allocator_alloc", "caching_allocator_delete",
            "caching_allocator_disabled", "caching_allocator_enable", "change_current_allocator",
            "get_allocator_backend", "use_mem_pool",
        ),
        _ALLOCATOR,
    ),
    **dict.fromkeys(
        (
            "CudaError", "check_error", "cudaStatus", "cudart", "current_blas_handle", "current_solver_handle",
            "get_arch_list", "get_gencode_flags", "has_magma", "jiterator", "nccl", "tunable",
        ),
        _NVIDIA,
    ),
    **dict.fromkeys(("clock_rate", "memory_usage", "power_draw", "temperature"), _SENSORS),
    "DeferredCudaCallError": "no initialization calls are deferred; recorded ops raise their own errors",
    "ExternalStream": "streams are not handles of a driver",
    "GreenContext": "a worker's cores are set with TORCH_REMOTE_WORKER_THREADS",
    "get_stream_from_external": "streams are not handles of a driver",
    "has_half": "an old constant; see get_amp_supported_dtype()",
    "ipc_collect": "processes do not share the worker's memory",
    "memory_snapshot": "addresses on the worker have no meaning here; see memory_summary() and torch.remote.profile",
    "profiler": "use torch.profiler or torch.remote.profile",
    "sparse": "an empty module of torch",
}  # fmt: skip
