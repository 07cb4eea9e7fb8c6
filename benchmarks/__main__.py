"""``python -m benchmarks``: all of them, one after another."""

from benchmarks import accounting, denoiser

if __name__ == "__main__":
    for module in (accounting, denoiser):
        print(f"== {module.__name__}")
        module.main()
        print()
