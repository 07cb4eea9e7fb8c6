"""``python -m benchmarks``: all of them, one after another."""

from benchmarks import accounting, allocation, clipping, denoiser, grape, noise

if __name__ == "__main__":
    for module in (accounting, allocation, denoiser, clipping, grape, noise):
        print(f"== {module.__name__}")
        module.main()
        print()
