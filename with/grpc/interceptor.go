// Package grpcowner makes each call of a gRPC server an owner of locks:
//
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpcowner.Unary),
//		grpc.ChainStreamInterceptor(grpcowner.Stream))
//
// Functions that are called with the context of a unary call, or of a stream, can then re-enter the
// locks that the call holds. The goroutines of a call share its locks, and do not exclude each other.
// The end of a call ends the contexts of its locks, but does not release them: unlock each.
//
// Return codes.Aborted for [mysqllock.ErrNotAcquired], codes.Unavailable for
// [mysqllock.ErrUnavailable], and codes.Internal for other errors of an acquire.
//
// Put these interceptors before those that acquire locks. After them, they would start another owner,
// which cannot re-enter the locks of the first one.
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

// Unary is a [grpc.UnaryServerInterceptor] that gives the context of each call a new owner. It returns
// the response and the error of the handler.
func Unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return handle(mysqllock.WithOwner(ctx), request)
}

// Stream is a [grpc.StreamServerInterceptor] that gives the context of each stream a new owner, for all
// of its messages. It returns the error of the handler.
func Stream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return handle(service, owned{stream, mysqllock.WithOwner(stream.Context())})
}

// owned is a stream with another context.
type owned struct {
	grpc.ServerStream
	ctx context.Context
}

func (s owned) Context() context.Context { return s.ctx }
