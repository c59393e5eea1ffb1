"""``python -m bench [module …]`` for ours, ``python -m bench peers …`` for ours beside others."""

import sys

if __name__ == "__main__":  # the client process of bench.peers imports this file again
    if sys.argv[1:2] == ["peers"]:
        from bench.peers.main import main

        sys.exit(main(sys.argv[2:]))
    from bench.run import main

    sys.exit(main(sys.argv[1:]))
