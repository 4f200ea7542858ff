"""Metadata of the distribution. Tool settings are in pyproject.toml, pins in constraints.txt."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
PACKAGES = ("sequoia", "tree_builder", "verifiers", "model_fi")

EXPERIMENTS = ["matplotlib>=3.8", "scipy>=1.11"]
DEV = [
    "gguf>=0.10",
    "hypothesis>=6.100",
    "mypy>=1.10",
    "pytest>=8.0",
    "pytest-xdist>=3.5",
    "ruff>=0.8",
    "scipy>=1.11",
    "setuptools>=68",
]

setup(
    name="sequoia-spec",
    version=runpy.run_path(str(ROOT / "sequoia" / "version.py"))["__version__"],
    description="Tree-based speculative decoding for Hugging Face models, exact and for research",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=[*PACKAGES, *(f"{name}.*" for name in PACKAGES)]),
    package_data={"sequoia": ["data/*", "embedded/*", "embedded/**/*"]},
    install_requires=[
        "accelerate>=1.0",
        "click>=8.2",
        "numpy>=1.26",
        "psutil>=5.9",
        "safetensors>=0.4.3",
        "torch>=2.6",
        "tqdm>=4.66",
        "transformers>=4.57",
    ],
    extras_require={
        "cuda": ["flashinfer-python>=0.7; platform_system == 'Linux'"],
        "experiments": EXPERIMENTS,
        "dev": DEV,
    },
    entry_points={"console_scripts": ["sequoia = sequoia.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
