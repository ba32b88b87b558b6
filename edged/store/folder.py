"""The folders that hold models and manuals, and how a name finds its file there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from edged.errors import NotFound
from edged.store.catalogue import BY_NAME, CATALOGUE

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
SYSTEM_FOLDER = Path("/var/lib/edged/models")


def data_folder(env: Mapping[str, str] | None = None) -> Path:
    """Where edged keeps what it is given: the service's state folder, else the user's data folder."""
    env = os.environ if env is None else env
    if env.get("STATE_DIRECTORY"):  # systemd, StateDirectory=
        return Path(env["STATE_DIRECTORY"].split(":")[0])
    if os.geteuid() == 0:
        return SYSTEM_FOLDER.parent
    home = Path(env.get("XDG_DATA_HOME") or Path(env.get("HOME", "~")).expanduser() / ".local" / "share")
    return home / "edged"


def models_folder(env: Mapping[str, str] | None = None) -> Path:
    """Where models are put: EDGED_MODELS, else `models` in the data folder."""
    env = os.environ if env is None else env
    if env.get("EDGED_MODELS"):
        return Path(env["EDGED_MODELS"]).expanduser()
    return data_folder(env) / "models"


def manuals_file(store: str = "", env: Mapping[str, str] | None = None) -> Path:
    """The file that holds the manuals: `store`, or manuals.db in the data folder. It need not be there yet."""
    return Path(store).expanduser().absolute() if store else data_folder(env) / "manuals.db"


def search_folders(env: Mapping[str, str] | None = None) -> list[Path]:
    """Where models are looked for: the own folder first, then the system's."""
    own = models_folder(env)
    return [own] if own == SYSTEM_FOLDER else [own, SYSTEM_FOLDER]


def installed(env: Mapping[str, str] | None = None) -> list[Path]:
    """The models there are, by name; one that is shadowed by the own folder's is left out.

    Of a split set only the first file is listed.
    """
    found: dict[str, Path] = {}
    for folder in search_folders(env):
        for path in folder.glob("*.gguf"):
            if not _LATER_PART.search(path.name):
                found.setdefault(path.name, path)
    return [found[name] for name in sorted(found)]


def find(model: str, env: Mapping[str, str] | None = None) -> Path:
    """The file meant by a catalogue name, a path, or the name of a file in a models folder; "": the default one.

    Raises NotFound.
    """
    if not model:
        return default_model(env)
    if model in BY_NAME:
        file = BY_NAME[model].file
        hint = f"edged pull {model}"
    elif "/" in model or Path(model).is_file():
        if Path(model).is_file():
            return Path(model)
        raise NotFound(f"no model file {model}")
    else:
        file = model if model.endswith(".gguf") else f"{model}.gguf"
        hint = f"give a path, or one of: {', '.join(BY_NAME)}"
    folders = search_folders(env)
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    raise NotFound(f"no model {model!r} in {' or '.join(map(str, folders))}", hint=hint)


def default_model(env: Mapping[str, str] | None = None) -> Path:
    """The model used where none is named: the only one there is, else the first of the catalogue. Raises NotFound."""
    here = {path.name: path for path in installed(env)}
    first = CATALOGUE[0]
    if len(here) == 1 or first.file in here:
        return here.get(first.file) or next(iter(here.values()))
    what = f"none of {len(here)} models is the default" if here else "no model is here"
    raise NotFound(f"no model named, and {what}", hint=f"edged models; edged pull {first.name}; or --model NAME")
