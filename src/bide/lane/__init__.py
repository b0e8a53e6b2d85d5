"""lane"""
