"""Names of what this package puts into a batch: none that a data set or a model uses."""

TASK = "oasis_task"  # [N] int64: index of the task that a sample belongs to, -1 for none
ITEM = "oasis_item"  # [N] int64: number of the sample in the stream
WEIGHT = "oasis_weight"  # [N] float: factors of the rows' losses, where a selection has them
COUNTS = "oasis_num_images"  # [N] int64: images of each sample, in the order of the samples
VIDEO_COUNTS = "oasis_num_videos"  # [N] int64: videos likewise
POSITIONS = "oasis_positions"  # [N, L, 3]: position_ids [3, N, L] of Qwen-VL
ENCODER = "oasis_encoder_"  # before the names of what an encoder is given
BLOCK = "oasis_block_"  # and a number: [N, L, D] what that block gave in scoring (train/reuse.py)
