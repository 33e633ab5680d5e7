package main

var shared = []mutation{}

var permits = []mutation{}

var batches = []mutation{}

var waitQueues = []mutation{}
