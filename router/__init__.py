"""The live service. Empty of imports, so that `router.scheduler` can be used without the rest."""
