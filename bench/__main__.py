"""``python -m bench [module …]`` runs ours, ``python -m bench peers …`` compares with others."""

import sys

if __name__ == "__main__":  # the client process of bench.peers imports this file again
    if sys.argv[1:2] == ["peers"]:
        from bench.peers.main import main

        sys.exit(main(sys.argv[2:]))
    from bench.run import main

    sys.exit(main(sys.argv[1:]))
