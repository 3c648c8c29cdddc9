"""A diffusers pipeline before and after `swap` of its UNet: equal images.

    python examples/diffusers_pipeline.py     needs diffusers

A UNet2DModel with random weights generates four images in 50 DDIM steps. The pipeline runs twice with the same seed;
between the runs, the UNet's `Timesteps` module is swapped.
"""

from __future__ import annotations

import diffusers
import numpy
import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

import sinpe_ext as sinpe

# For pixels in 0 to 1: the original rows have errors of 2e-5 at timestep 980, which propagate through 50 steps.
TOLERANCE = 1e-4


def pictures(pipeline: DDIMPipeline) -> numpy.ndarray:
    generator = torch.Generator().manual_seed(1)
    return pipeline(batch_size=4, generator=generator, num_inference_steps=50, output_type="np").images


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=32, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=4, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    # Velocities: if random weights predicted noise, the first steps would amplify any difference a thousandfold.
    pipeline = DDIMPipeline(unet, DDIMScheduler(num_train_timesteps=1000, prediction_type="v_prediction"))
    pipeline.set_progress_bar_config(disable=True)
    before = pictures(pipeline)
    report = sinpe.integrations.swap(pipeline.unet, strict=True)
    after = pictures(pipeline)
    difference = float(abs(after - before).max())
    same = float((numpy.round(after * 255) == numpy.round(before * 255)).mean())
    # Verify that wrong timestep rows would change the images, so that the comparison means something.
    pipeline.unet.time_proj.register_forward_hook(lambda module, given, rows: rows.roll(1, -1))
    wrong = float(abs(pictures(pipeline) - before).max())
    print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")
    print(report)
    print(
        f"{before.shape[0]} pictures of {before.shape[1]} x {before.shape[2]}: largest difference {difference:.1e}, "
        f"{same:.2%} of the 8-bit values the same"
    )
    print(f"with the channels of the timesteps moved by one it would be {wrong:.1e}")
    assert difference <= TOLERANCE and wrong > 100 * TOLERANCE


if __name__ == "__main__":
    main()
