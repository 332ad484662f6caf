"""The registry: the hooks, plugins, implementations and grad rules, and the choice by priority."""
