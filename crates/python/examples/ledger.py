"""A ledger in a volume: adds an entry, durably, and tells how many there are.

    python ledger.py IMAGE ENTRY
"""

import sys

import syncline


def main(image: str, entry: str) -> None:
    try:
        volume = syncline.Volume(image)
    except FileNotFoundError:
        volume = syncline.Volume.create(image, 64 << 20)
    with volume, volume.open("/ledger", "a+") as file:
        file.write(f"{entry}\n")
        file.sync()  # one write, one flush; the file's name is durable with it
        file.seek(0)
        print("entries:", len(file.readlines()))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: ledger.py IMAGE ENTRY")
    main(*sys.argv[1:])
