package main

const dies = false
