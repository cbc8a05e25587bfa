"""Reads another router's configuration, llama-swap's config.yaml, and writes ours.

`document` reads the YAML and replaces its macros, `command` turns a command line into preset keys, `convert` puts both
into config.json and presets.ini and notes what could not come along, `importer` does all of it for the verb.
"""
