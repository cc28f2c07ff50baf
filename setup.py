"""What setup.cfg can't say: launch/, ds_configs/ and configs/ are installed inside the package, as minimind/shipped/.

minimind/base/shipped.py finds them there, or in the checkout where there is one. All metadata is in setup.cfg.
"""

from setuptools import find_packages, setup

SHIPPED = {"launch": "*.py", "ds_configs": "*.json", "configs": "*.yaml"}

setup(
    packages=[*find_packages(include=["minimind", "minimind.*"]), *(f"minimind.shipped.{name}" for name in SHIPPED)],
    package_dir={f"minimind.shipped.{name}": name for name in SHIPPED},
    package_data={
        "minimind": [
            "py.typed",
            "inference/choices/subjects.json",
            "inference/serving/page_files/*",
            "commands/page/assets/*",
        ],
        **{f"minimind.shipped.{name}": [files] for name, files in SHIPPED.items()},
    },
)
