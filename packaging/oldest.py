"""Print the oldest versions that pyproject.toml allows, as constraints of pip."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for line in [*project["dependencies"], *extras["train"], *extras["table"], *extras["vision"]]:
    name, version = line.split(">=")
    print(f"{name}=={version if '.' in version else version + '.0'}.*")
