"""Who runs what: the hooks, the registry of plugins, gradient rules, and the choice by priority."""
