// Package grpcowner makes each call of a gRPC server an owner of locks:
//
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpcowner.Unary),
//		grpc.ChainStreamInterceptor(grpcowner.Stream))
//
// Whatever is called with the context of a unary call, or of a stream, can then
// re-enter the locks that the call holds. The goroutines of a call share its locks,
// and do not exclude each other. A lock is not released by the end of its call, only
// its context ends: unlock it.
//
// Return codes.Aborted for [mysqllock.ErrNotAcquired], codes.Unavailable for
// [mysqllock.ErrUnavailable], and codes.Internal for other errors of an acquire.
//
// Put the interceptors before those that take locks. After them they would start
// another owner, for whom their locks are those of somebody else.
package grpcowner

import (
	"context"

	"google.golang.org/grpc"

	"github.com/mysqllock/mysqllock"
)

var (
	_ grpc.UnaryServerInterceptor  = Unary
	_ grpc.StreamServerInterceptor = Stream
)

// Unary is a [grpc.UnaryServerInterceptor]: the context of each call starts an
// owner. It returns the response and the error of the handler.
func Unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return handle(mysqllock.WithOwner(ctx), request)
}

// Stream is a [grpc.StreamServerInterceptor]: the context of each stream starts an
// owner, for all of its messages. It returns the error of the handler.
func Stream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return handle(service, owned{stream, mysqllock.WithOwner(stream.Context())})
}

// owned is a stream with another context, always the same.
type owned struct {
	grpc.ServerStream
	ctx context.Context
}

func (s owned) Context() context.Context { return s.ctx }
