"""Print pip constraints for the oldest versions of all packages that pyproject.toml names."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for line in sorted({*project["dependencies"], *extras["train"], *extras["table"], *extras["vision"]}):
    name, found, version = line.partition(">=")
    if found:
        print(f"{re.sub(r'\[.*', '', name)}=={version}.*")
