"""Programs that start runs; they are run from the root of the project and are no part of the installed package."""
