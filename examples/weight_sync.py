"""Weight sync: rank 0 trains a language model; rank 1 gets its bfloat16 weights from a folder, rank 2 from a broadcast.

torchrun --standalone --nproc-per-node 3 examples/weight_sync.py FOLDER --steps 60
"""

import argparse
import gc

import torch
import torch.distributed as dist

from gcodec import distributed, sync
from gcodec.demo import data, models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where versions are kept")
    parser.add_argument("--steps", type=int, default=60, help="steps that are published, after five times as many")
    options = parser.parse_args()
    dist.init_process_group("gloo")  # CPUs are enough
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.Transformer(256, width=64, layers=2, context=64)
    folder, pair = sync.VersionFolder(options.folder), dist.new_group([0, 2])
    if dist.get_rank() == 0:  # float32 masters; others see what bfloat16 shows of them
        text = torch.frombuffer(bytearray(data.read_standard_library(400_000).encode()), dtype=torch.uint8).long()
        publisher, broadcast = sync.Publisher(dtype="bfloat16"), distributed.WeightBroadcast(pair)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(1 - 5 * options.steps, options.steps + 1):
            optimizer.param_groups[0]["lr"] = 4e-3 if step < 1 else 1e-6  # as in reinforcement learning
            tokens = torch.stack([text[start : start + 65] for start in torch.randint(len(text) - 65, (8,))])
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step >= 1:
                version = publisher.publish(model.state_dict(), metadata={"step": str(step)})
                folder.send(version)
                dist.broadcast_object_list([version.state])
                broadcast.send(version)
                print(f"version {step}: loss {loss:.3f}, {version.stats}", flush=True)
    else:
        subscriber = sync.Subscriber(model.to(torch.bfloat16).requires_grad_(False).state_dict(keep_vars=True))
        source = None if dist.get_rank() == 1 else distributed.WeightBroadcast(pair)
        for number in range(1, options.steps + 1):
            dist.broadcast_object_list(published := [None])  # once it is in the folder
            source.receive(subscriber) if source else subscriber.catch_up(folder, to=number)
            subscriber.verify()  # the model's own tensors, read again
            assert [subscriber.state] == published, f"version {number} is not the trainer's"
        tokens = torch.tensor([list(b"def ")])
        while tokens.shape[1] < 64:
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
        print(f"rank {dist.get_rank()}, bit for bit at {number} versions: {bytes(tokens[0].tolist())!r}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # ends Gloo's threads before Python ends: one that lets a tensor go after that aborts the process
