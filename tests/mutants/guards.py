"""Who ought to notice a kind of fault: files of tests by subject. Rows name these: a file that moves is changed here alone.

Few and quick ones: a row runs all of its files where nothing notices.
"""

# The engine.
AGREEMENT = ("tests/unit/test_engine_agreement.py", "tests/unit/test_engine_operations.py")
MISMATCH = ("tests/unit/test_engine_agreement.py", "tests/parallel/test_mismatch.py")
CACHE = ("tests/unit/test_response_cache.py", "tests/unit/test_engine_agreement.py")
SETS = ("tests/unit/test_set_changes.py", "tests/parallel/test_process_sets.py")
LEDGER = ("tests/unit/test_ledger.py", *AGREEMENT)
COPIES = ("tests/unit/test_native_cases.py", "tests/sim/test_sim.py")
PREPARED = ("tests/unit/test_prepared.py", "tests/parallel/test_allreduce.py")
STALLS = ("tests/unit/test_native_cases.py", "tests/sim/test_sim.py", "tests/unit/test_stall.py")
LEAVING = ("tests/unit/test_leaving.py",)
DEADLOCKS = ("tests/unit/test_engine_failures.py",)
SUBMISSIONS = ("tests/unit/test_submit.py",)
CALLERS = ("tests/unit/test_c_abi.py",)
MEMBERSHIP = ("tests/unit/test_native_cases.py", "tests/sim/test_sim.py")
WEIGHTS = ("tests/unit/test_weights.py",)
GPU_WEIGHTS = ("tests/unit/test_gpu_weights.py",)
MESSAGES = ("tests/unit/test_native_cases.py", "tests/sim/test_sim.py", "tests/parallel/test_point_to_point.py")
TIMELINE = ("tests/unit/test_timeline_files.py", "tests/parallel/test_timeline.py")
OUTPUTS = ("tests/unit/test_output_cache.py", "tests/parallel/test_outputs.py")

# Algorithms and kernels.
ALGORITHMS = ("tests/unit/test_collectives.py",)
IN_SHARED_MEMORY = (
    "tests/unit/test_shared_memory_collectives.py",
    "tests/unit/test_shared_memory_parts.py",
    "tests/unit/test_collectives.py",
)
IN_ARENAS = ("tests/unit/test_arena.py", "tests/unit/test_arena_lives.py")
ADASUM = ("tests/unit/test_adasum.py",)
CODECS = ("tests/unit/test_codec_kernels.py", "tests/unit/test_coded_allreduce.py")
KERNELS = ("tests/unit/test_kernels.py", "tests/unit/test_kernel_values.py")

# Transport, and GPUs (fakes).
MPI = ("tests/fault/test_transport.py",)
OPEN_RESULTS = ("tests/unit/test_open_results.py",)
GPU = ("tests/unit/test_gpu_engine.py", "tests/unit/test_gpu_schedules.py")
GPU_STREAMS = ("tests/unit/test_gpu_engine_streams.py", "tests/unit/test_gpu_engine.py")
GPU_STAGED = ("tests/unit/test_gpu_staging.py", "tests/unit/test_gpu_engine_streams.py", "tests/unit/test_gpu_engine.py")
GPU_MEMORY = ("tests/unit/test_native_cases.py", "tests/unit/test_gpu_engine_streams.py", "tests/unit/test_gpu_schedules.py")

# The native module.
PLAIN_CALLS = ("tests/unit/test_plain_calls.py", "tests/unit/test_plain_calls_started.py")
PASSES = ("tests/unit/test_native_cases.py", "tests/unit/test_gradient_hooks.py")
HOOKS = ("tests/unit/test_gradient_hooks.py", "tests/unit/test_bucket_launch.py")

# The doors.
TORCH_TRAINING = ("tests/adapters/torch/test_training.py",)
TORCH_PASSES = (
    "tests/adapters/torch/test_late_additions.py",
    "tests/adapters/torch/test_passes.py",
    "tests/adapters/torch/test_nested_passes.py",
)
TORCH_SHARDING = ("tests/adapters/torch/test_sharding.py",)
TORCH_RESTART = ("tests/adapters/torch/test_restart.py",)
TORCH_CALLBACKS = ("tests/adapters/torch/test_future_callbacks.py",)
TORCH_WEIGHT = ("tests/adapters/torch/test_weight.py",)
TORCH_OPTIONS = ("tests/adapters/torch/test_options.py",)
TORCH_UNUSED = ("tests/adapters/torch/test_unused.py",)
TORCH_SPARSE = ("tests/adapters/torch/test_sparse.py",)
TORCH_STATE = ("tests/adapters/torch/test_state.py",)
TORCH_BATCH_NORM = ("tests/adapters/torch/test_sync_batch_norm.py",)
TORCH_GRADIENTS = ("tests/adapters/torch/test_gradients.py",)
TORCH_CODINGS = ("tests/adapters/torch/test_powersgd.py",)
TF_TRAINING = ("tests/adapters/tensorflow/test_tf_training.py",)
TF_START = ("tests/adapters/tensorflow/test_tf_start_check.py",)
TF_STATE = ("tests/adapters/tensorflow/test_tf_state.py",)
TF_WEIGHT = ("tests/adapters/tensorflow/test_tf_weight.py",)
TF_GRADIENTS = ("tests/adapters/tensorflow/test_tf_op_gradients.py",)
KERAS = ("tests/adapters/keras/test_keras_tensorflow.py",)
KERAS_ON_TORCH = ("tests/adapters/keras/test_keras_torch.py",)  # has all the cases, of which many are slow ones on TensorFlow
CONSISTENCY = ("tests/parallel/test_consistency.py", "tests/adapters/torch/test_consistency.py")
START = ("tests/adapters/torch/test_start_check.py", "tests/unit/test_start_check.py")
JAX_WEIGHT = ("tests/adapters/jax/test_jax_weight.py",)
JAX = ("tests/adapters/jax/test_jax_collectives.py",)

# Launcher, and what needs no engine.
LAUNCHER_HOSTS = ("tests/unit/test_launcher_hosts.py",)
LAUNCHER_OUTPUT = ("tests/unit/test_launcher_output.py",)
OBJECTS = ("tests/parallel/test_objects.py",)
DATA = ("tests/unit/test_data.py",)
ELASTIC = ("tests/unit/test_elastic.py",)
SPARES = ("tests/unit/test_pool.py", "tests/fault/test_elastic_spares.py")
ELASTIC_JOB = ("tests/adapters/torch/test_elastic_job.py",)
RANDOM_NUMBERS = ("tests/unit/test_random_numbers.py",)
RECOVERY = (
    "tests/unit/test_elastic_steps.py",
    "tests/fault/test_elastic_job.py",
    "tests/fault/test_elastic_recovery.py",
    "tests/fault/test_elastic_shard.py",
)
SHIM = ("tests/unit/test_horovod_shim.py", "tests/unit/test_horovod_run.py")
