"""The request dialects of SGLang's bootstrap protocol: one module and one table row for each."""
