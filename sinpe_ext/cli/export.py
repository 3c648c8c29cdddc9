"""`python -m sinpe_ext export`: the plan of an encoding as a C header, for C and C++ programs without Python."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..encodings.encoding import Encoding
from ..encodings.plan import plan
from . import chosen_encoding, encoding_option

HELP = "write an encoding's constants as a C header"


def options(command: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand."""
    command.add_argument("convention", metavar="CONVENTION", help="name of a convention, such as paper or t2t")
    command.add_argument("dim", metavar="DIM", type=int, help="number of channels")
    encoding_option(command)
    command.add_argument("--name", help="C identifier of the array (default: the convention and the dim, as paper6)")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="file to write; - for standard output")


def main(options: argparse.Namespace) -> int:
    """Runs the subcommand. Raises TypeError, ValueError for invalid options."""
    name = f"{options.convention}{options.dim}".replace("-", "_") if options.name is None else options.name
    text = export_header(chosen_encoding(options), name)
    if options.output == "-":
        print(text, end="")
    else:
        Path(options.output).write_text(text, encoding="utf-8")
        print(options.output)
    return 0


def export_header(encoding: Encoding, name: str) -> str:
    """Returns a self-contained C99 / C++17 header with the plan of an encoding, for the functions of sinpe/sinpe.h.

    Args:
        encoding: the encoding to export; its angle must be "exact".
        name: C identifier of the array; the header also defines <name>_words and <name>_dim. A keyword or a macro of C
            is an error of the compiler that reads the header.

    Returns:
        the text of the header.

    Raises:
        TypeError: not an Encoding, or a name that is not a string.
        ValueError: a name that is no C identifier, or an angle that the C interface does not support.
    """
    if not isinstance(encoding, Encoding):
        raise TypeError(f"encoding: expected Encoding, got {type(encoding).__name__}; pass convention(name, dim)")
    if not isinstance(name, str):
        raise TypeError(f"name: expected str, got {type(name).__name__}; pass a C identifier such as paper6")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name: expected a C identifier, got {name!r}; pass letters, digits and _, such as paper6")
    if encoding.angle != "exact":
        raise ValueError(
            f'encoding: expected angle="exact", got "{encoding.angle}"; the C interface computes exact angles only'
        )
    words = plan(encoding).packed
    rows = ["    " + ", ".join(map(_literal, words[at : at + 4])) + "," for at in range(0, len(words), 4)]
    guard = f"SINPE_PLAN_{name}_H"  # not in upper case, because names may differ in case only
    return f"""\
/* Written by `python -m sinpe_ext export`; change the encoding and export again.
 *
 * {encoding!r}
 *
 * Use: sinpe_table({name}, {name}_words, ...) and the other functions of sinpe/sinpe.h.
 */
#ifndef {guard}
#define {guard}

#include <stdint.h>

enum {{ {name}_words = {len(words)}, {name}_dim = {encoding.dim} }};

static const int64_t {name}[] = {{
{chr(10).join(rows)}
}};

#endif /* {guard} */
"""


def _literal(word: int) -> str:
    """An int64 as a C literal."""
    # In C, -9223372036854775808 is a minus applied to a number that does not fit into a signed type.
    return "(-9223372036854775807 - 1)" if word == -(2**63) else str(word)
